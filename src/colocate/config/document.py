"""The kinds of configuration files: what type each is read into, and how it is checked. See `file`."""

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

C = TypeVar("C")

VERSION = 1
"""The version of configuration files that this release reads."""


class ConfigDocument(msgspec.Struct, Generic[C], frozen=True):
    """The configuration file of one kind of process."""

    kind: type[C]
    check: Callable[[C], None]
    """Raises a Problem where a process could not run with it, though the types fit."""
    decode: Callable[[type, Any], Any]
    """Builds the types that a file has no words for (a msgspec dec_hook)."""
    example: str
    """Where to find one to start from, as the end of a sentence."""
    foreign: Mapping[str, str] = {}
    """By a top-level field that only another kind has: whose it is, and how that is checked."""
    translate: Callable[[Any], dict[str, Any] | None] = lambda tree: None
    """Turns the file of another system into one of this kind; None where it is not such a file."""


_OF_KUBERNETES = "a Kubernetes object; give the file that it holds"
FOREIGN_TO_ALL = {"apiVersion": _OF_KUBERNETES, "kind": _OF_KUBERNETES}
