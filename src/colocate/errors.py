"""The errors of this project; anything may import them.

`UserError` is what a person can mend: the command line prints its one sentence and exits with 2.
Everything else is a fault of the program or of its surroundings.
"""


class ColocateError(Exception):
    """The root of all errors raised by Colocate on purpose."""


class UserError(ColocateError):
    """Something the user said cannot be done as said: what was found, and what to do about it."""


class Unavailable(ColocateError):
    """A component that is needed does not answer; trying again later may help."""
