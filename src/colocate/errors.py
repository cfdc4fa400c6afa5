"""The errors of this project; anything may import them.

`UserError` is a mistake that the user can correct: the command line prints its one sentence and exits with 2.
Every other error is a fault of the program or of its environment.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class ColocateError(Exception):
    """The root of all errors raised by Colocate on purpose."""


class UserError(ColocateError):
    """Something the user said cannot be done as said: what was found, and what to do about it."""


class Unavailable(ColocateError):
    """A component that is needed does not answer; trying again later may help."""


def visible(text: str) -> str:
    """The text with control and other unprintable characters written as escapes.

    Errors and answers contain text from servers and tenants, which must not control a terminal.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def system_reason(error: OSError | ValueError) -> str:
    """Why a file or call failed, as a part of a sentence without the file's name.

    A ValueError comes from what was read: bytes that are not text, or an impossible path.
    """
    if isinstance(error, UnicodeError):
        return "it is not text"
    return (getattr(error, "strerror", None) or str(error)).lower()


def unreadable(error: OSError | UnicodeDecodeError) -> str:
    """Why a text file cannot be read, as a part of a sentence."""
    return system_reason(error) if isinstance(error, OSError) else "it is not UTF-8"


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """End the process with exit code 2 and one sentence on standard error, never a traceback."""
    refused: UserError | None = None
    try:
        yield
    except* UserError as group:
        refused = _first(group)
    if refused is not None:
        sys.stderr.write(f"colocate: {visible(str(refused))}\n")
        raise SystemExit(2)


def _first(group: BaseExceptionGroup[UserError]) -> UserError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
