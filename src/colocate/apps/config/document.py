"""The kinds of configuration files: what type each is read into, and how it is checked. See `file`."""

from collections.abc import Callable
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


AGENT = ConfigDocument(
    schema.Config, check.check, values.decode, "'colocate config example' prints an example"
)
