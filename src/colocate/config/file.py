"""Reads a configuration: flags override the environment, which overrides the file, which overrides an optional
underlay from another file.

A mistake becomes one sentence that names the file and field, the variable or the flag.
"""

import errno
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import inspect

from colocate.config import override, words
from colocate.config.document import VERSION, ConfigDocument
from colocate.config.override import Override
from colocate.config.strict_yaml import NotYaml, Tree, parse
from colocate.errors import UserError, system_reason

MAX_BYTES = 1 << 20
"""The limit of a ConfigMap."""

C = TypeVar("C")


class Underlay(msgspec.Struct, frozen=True):
    """Values for fields that neither the file nor an override sets."""

    tree: Mapping[str, Any]
    origin: str


NOTHING_BELOW = Underlay({}, "")


class Loaded(msgspec.Struct, Generic[C], frozen=True):
    """A valid configuration, and the origin of values that are not from the file."""

    config: C
    origins: Mapping[str, str]
    """By path, the variable, flag or underlay that set the value."""


def load_document(
    document: ConfigDocument[C],
    file: Path,
    environ: Mapping[str, str],
    flags: Iterable[Override] = (),
    under: Underlay = NOTHING_BELOW,
) -> Loaded[C]:
    """The configuration in `file` with its overrides; UserError if it is invalid."""
    return build_document(document, _read(file, document.example), str(file), environ, flags, under)


def build_document(
    document: ConfigDocument[C],
    blob: bytes,
    file: str,
    environ: Mapping[str, str] | None = None,
    flags: Iterable[Override] = (),
    under: Underlay = NOTHING_BELOW,
) -> Loaded[C]:
    """The configuration in the bytes of a file; error messages call it `file`."""
    tree: Any = _tree(blob, file, document)
    origins: dict[str, str] = {}
    try:
        kind = inspect.type_info(document.kind)
        tree = words.without_blank_sections(kind, tree)
        words.check(kind, tree, document.decode)
        for path in _fill(tree, under.tree):
            origins[".".join(path)] = under.origin
        for one in (*override.from_environment(environ or {}, document), *flags):
            _put(tree, one.path.split("."), override.value_of(one, document))
            origins[one.path] = one.origin
        config = msgspec.convert(tree, document.kind, dec_hook=document.decode)
        document.check(config)
    except words.Problem as problem:
        if problem.path in origins:
            raise UserError(f"{origins[problem.path]}: {problem.what}") from problem
        raise UserError(f"{file}: {problem}") from problem
    except msgspec.ValidationError as error:
        raise UserError(f"{file}: {error}; {document.example}") from error
    return Loaded(config, origins)


def _read(file: Path, example: str) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(MAX_BYTES + 1)
    except OSError as error:
        remedy = {
            errno.ENOENT: f"check the path; {example}",
            errno.EISDIR: "give the file in it",
            errno.EACCES: "let this user read it",
        }.get(error.errno or 0, "check the path")
        reason = system_reason(error)
        raise UserError(f"{file}: cannot be read ({reason}); {remedy}") from error
    except ValueError as error:
        raise UserError(f"{str(file)!r}: cannot be a path ({error}); check it") from error


def _tree(blob: bytes, file: str, document: ConfigDocument[Any]) -> dict[str, Tree]:
    example = document.example
    if len(blob) > MAX_BYTES:
        raise UserError(f"{file}: the file has more than {MAX_BYTES} bytes; make it smaller")
    try:
        tree = parse(blob.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: byte {error.start} is not UTF-8; save the file as UTF-8 text") from error
    except NotYaml as error:
        raise UserError(f"{file}: {error}") from error
    if tree is None:
        raise UserError(f"{file}: the file is empty; write at least 'version: {VERSION}'; {example}")
    try:
        translated = document.translate(tree)
    except words.Problem as problem:
        raise UserError(f"{file}: {problem}") from problem
    if translated is not None:
        return translated
    if not isinstance(tree, dict):
        raise UserError(
            f"{file}: {words.show(tree)} is not a mapping; begin with 'version: {VERSION}'; {example}"
        )
    own = {field.encode_name for field in msgspec.structs.fields(document.kind)}
    for name in tree:
        if name in document.foreign and name not in own:
            raise UserError(f"{file}: this is {document.foreign[name]}")
    if "version" not in tree:
        raise UserError(f"{file}: version: this field is missing; add 'version: {VERSION}' at the top")
    if tree["version"] != VERSION or type(tree["version"]) is not int:
        raise UserError(
            f"{file}: version: this release reads version {VERSION} and not {words.show(tree['version'])}; "
            f"write 'version: {VERSION}', or use a release that reads the other"
        )
    return tree


def _put(tree: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def _fill(tree: dict[str, Any], below: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Add missing values to a tree; yields their paths."""
    for name, value in below.items():
        if isinstance(value, Mapping):
            for path in _fill(tree.setdefault(name, {}), value):
                yield name, *path
        elif name not in tree:
            tree[name] = value
            yield (name,)
