"""Why an extended resource is not as somebody wishes it to be."""

from colocate.errors import ColocateError, UserError


class NoNode(UserError):
    """The cluster has no node of that name."""


class RemovalRefused(ColocateError):
    """The cluster is not in a state in which this would do what is meant; nothing was changed."""


class NotRemoved(ColocateError):
    """It was tried, and the resource is there, or may be."""
