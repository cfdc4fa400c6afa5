"""Which values the environment and flags can override, derived from the schema.

Every scalar field but the version has a path as written in the file (`kubelet.onStop`), taken by `--set`, and a
variable (`COLOCATE_KUBELET_ON_STOP`). Lists, such as the mock resources, are set in the file only.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import inspect

from colocate.config import words
from colocate.config.document import ConfigDocument
from colocate.errors import UserError
from colocate.model.values import encode

PREFIX = "COLOCATE_"

# Not fields of a configuration: `crashpoints` and the test fixtures read them.
_NOT_CONFIGURATION = frozenset({"COLOCATE_CRASH_AT", "COLOCATE_CRASH_LOG", "COLOCATE_TEST_PATIENCE"})


class Settable(msgspec.Struct, frozen=True):
    """A field that can be overridden."""

    path: str
    variable: str
    kind: inspect.Type


class Override(msgspec.Struct, frozen=True):
    """A value from outside the file, and the variable or flag that gave it."""

    path: str
    text: str
    origin: str


def settable(document: ConfigDocument[Any]) -> dict[str, Settable]:
    """Every field that can be overridden, by its path."""
    top = inspect.type_info(document.kind)
    assert isinstance(top, inspect.StructType)
    fields = (field for field in top.fields if field.name != "version")
    return {one.path: one for field in fields for one in _scalars(field, "", PREFIX)}


def _scalars(field: inspect.Field, path: str, variable: str) -> Iterator[Settable]:
    path = words.dotted(path, field.encode_name)
    variable += field.name.upper()
    kind = words.stated(field.type)
    if isinstance(kind, inspect.StructType):
        for inner in kind.fields:
            yield from _scalars(inner, path, f"{variable}_")
    elif not isinstance(kind, inspect.ListType | inspect.VarTupleType | inspect.DictType):
        yield Settable(path, variable, kind)


def from_environment(environ: Mapping[str, str], document: ConfigDocument[Any]) -> list[Override]:
    """The overrides in the environment; an empty variable counts as not set."""
    return [
        Override(one.path, environ[one.variable], one.variable)
        for one in settable(document).values()
        if environ.get(one.variable)
    ]


def unknown_variables(environ: Mapping[str, str], document: ConfigDocument[Any]) -> list[str]:
    """A sentence for every COLOCATE_ variable that no code reads."""
    known = [one.variable for one in settable(document).values()]
    read = {*known, *_NOT_CONFIGURATION}
    strangers = sorted(name for name in environ if name.startswith(PREFIX) and name not in read)
    return [f"{name}: there is no such variable; {words.suggest(name, known, 'ones')}" for name in strangers]


def from_assignments(assignments: Iterable[str]) -> list[Override]:
    """The overrides of `--set path=value` flags."""
    found = []
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise UserError(f"--set {assignment}: there is no '='; write it as --set kubelet.onStop=withdraw")
        found.append(Override(path.strip(), text, f"--set {path.strip()}"))
    return found


def value_of(override: Override, document: ConfigDocument[Any]) -> Any:
    """The value in the type that the file would hold."""
    known = settable(document)
    if override.path not in known:
        if override.path.startswith("mock.resources"):
            raise UserError(f"{override.origin}: mock resources are set in the file only; edit them there")
        raise UserError(
            f"{override.origin}: there is no such field; {words.suggest(override.path, known, 'ones')}"
        )
    kind = known[override.path].kind
    try:
        value = msgspec.convert(
            override.text, words.python_type(kind), strict=False, dec_hook=document.decode
        )
    except msgspec.ValidationError as error:
        raise UserError(f"{override.origin}: {words.misfit(kind, override.text, error)}") from error
    return msgspec.to_builtins(value, enc_hook=encode)
