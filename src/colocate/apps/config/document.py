"""The kinds of configuration files: what type each is read into, and how it is checked. See `file`."""

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from colocate.apps.config import check, schema, values

C = TypeVar("C")


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


_OF_KUBERNETES = "a Kubernetes object; give the file that it holds"
_OF_THE_SCHEDULER = (
    "the configuration of 'colocate scheduler'; check it with 'colocate scheduler config check'"
)

FOREIGN_TO_ALL = {"apiVersion": _OF_KUBERNETES, "kind": _OF_KUBERNETES}

AGENT = ConfigDocument(
    schema.Config,
    check.check,
    values.decode,
    "'colocate config example' prints an example",
    FOREIGN_TO_ALL
    | dict.fromkeys(("server", "act", "shadow", "usage", "load", "taints", "decisions"), _OF_THE_SCHEDULER),
)
