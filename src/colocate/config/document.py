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
    """Raises a Problem if the types fit but a process could not run with the values."""
    decode: Callable[[type, Any], Any]
    """Builds types such as spans of time from text and numbers (a msgspec dec_hook)."""
    example: str
    """Where to find an example file, as the end of a sentence."""
    foreign: Mapping[str, str] = {}
    """By a top-level field of another kind of file: what that file is, and how to check it."""
    translate: Callable[[Any], dict[str, Any] | None] = lambda tree: None
    """Converts the file of another system into this kind; None if it is not such a file."""


_OF_KUBERNETES = "a Kubernetes object; give the file that it holds"
FOREIGN_TO_ALL = {"apiVersion": _OF_KUBERNETES, "kind": _OF_KUBERNETES}
