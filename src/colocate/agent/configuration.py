"""Reads the configuration of an agent: a file of Colocate, or the fallback.cfg of cri-resource-manager."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from colocate.agent import check, fallback, schema
from colocate.agent.schema import Config
from colocate.config.document import FOREIGN_TO_ALL, ConfigDocument
from colocate.config.file import Loaded, build_document, load_document
from colocate.config.override import Override
from colocate.model import values

_OF_THE_SCHEDULER = (
    "the configuration of 'colocate scheduler'; check it with 'colocate scheduler config check'"
)


def _translated(tree: Any) -> dict[str, Any] | None:
    return fallback.from_fallback(tree) if fallback.is_fallback(tree) else None


AGENT = ConfigDocument(
    schema.Config,
    check.check,
    values.decode,
    "'colocate config example' prints an example",
    FOREIGN_TO_ALL
    | dict.fromkeys(("server", "act", "shadow", "usage", "load", "taints", "decisions"), _OF_THE_SCHEDULER),
    translate=_translated,
)


def load(file: Path, environ: Mapping[str, str], flags: Iterable[Override] = ()) -> Loaded[Config]:
    """The agent's configuration in `file` with its overrides; UserError if it is invalid."""
    return load_document(AGENT, file, environ, flags)


def build(
    blob: bytes, file: str, environ: Mapping[str, str] | None = None, flags: Iterable[Override] = ()
) -> Loaded[Config]:
    """The agent's configuration in the bytes of a file; error messages call it `file`."""
    return build_document(AGENT, blob, file, environ, flags)
