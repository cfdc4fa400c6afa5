"""Explains why a value does not fit the type of its field: where, what was found, what to write.

msgspec decides whether a tree fits a type, but its errors name no field in a mapping and suggest nothing. This
module walks the same types and writes the message.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import inspect

DecHook = Callable[[type, Any], Any]


class Problem(Exception):
    """Something is wrong with the value of one field."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path}: {what}" if path else what)
        self.path = path
        self.what = what


def check(kind: inspect.Type, value: Any, hook: DecHook, path: str = "") -> None:
    """Raise the first Problem of `value`, if it has one."""
    match kind:
        case inspect.StructType():
            _check_struct(kind, value, hook, path)
        case inspect.ListType() | inspect.VarTupleType():
            if not isinstance(value, list):
                raise Problem(path, f"{show(value)} is not a list; write it as [a, b] or with a '-' per item")
            for index, item in enumerate(value):
                check(kind.item_type, item, hook, f"{path}[{index}]")
        case inspect.DictType():
            if not isinstance(value, Mapping):
                raise Problem(path, f"{show(value)} is not a mapping; write 'name: value' lines below it")
            for name, item in value.items():
                if isinstance(kind.value_type, inspect.StructType):
                    check(kind.value_type, item, hook, dotted(path, str(name)))
                elif not isinstance(item, str):
                    # The value may be secret: name its type, never the value.
                    raise Problem(dotted(path, name), f"{_kind_of(item)} is not text; put it in quotes")
        case _:
            _check_scalar(kind, value, hook, path)


def _check_struct(kind: inspect.StructType, value: Any, hook: DecHook, path: str) -> None:
    if not isinstance(value, Mapping):
        known = list_of(field.encode_name for field in kind.fields)
        raise Problem(
            path, f"{show(value)} is not a mapping; write 'field: value' lines, with fields of {known}"
        )
    fields = {field.encode_name: field for field in kind.fields}
    for name in value if kind.forbid_unknown_fields else ():
        if name not in fields:
            raise Problem(dotted(path, name), f"there is no such field; {suggest(name, fields, 'fields')}")
    for name, field in fields.items():
        if name in value:
            check(stated(field.type), value[name], hook, dotted(path, name))
        elif field.required:
            raise Problem(dotted(path, name), "this field is missing and has no default; add it")


def _check_scalar(kind: inspect.Type, value: Any, hook: DecHook, path: str) -> None:
    try:
        msgspec.convert(value, python_type(kind), dec_hook=hook)
    except msgspec.ValidationError as error:
        raise Problem(path, misfit(kind, value, error)) from error


def misfit(kind: inspect.Type, value: Any, error: Exception) -> str:
    """Why a single value is refused, and what to write instead."""
    return f"{show(value)} is not {_wanted(kind, error)}{_hint(kind, value)}"


def _wanted(kind: inspect.Type, error: Exception) -> str:
    match kind:
        case inspect.EnumType(cls=choices):
            return f"known here; choose one of {list_of(choice.value for choice in choices)}"
        case inspect.CustomType():
            return str(error).partition(" - at `$")[0]
        case inspect.IntType():
            return "a whole number; write it like 8"
        case inspect.FloatType():
            return "a number; write it like 0.5"
        case inspect.BoolType():
            return "true or false; write one of the two"
        case _:
            return "text"


def _hint(kind: inspect.Type, value: Any) -> str:
    if isinstance(kind, inspect.StrType) and isinstance(value, bool | int | float):
        return "; put it in quotes"
    if isinstance(kind, inspect.EnumType) and isinstance(value, str):
        close = difflib.get_close_matches(value.lower(), [str(choice.value) for choice in kind.cls], 1)
        return f" (did you mean {close[0]}?)" if close else ""
    return ""


def python_type(kind: inspect.Type) -> Any:
    """The Python type of a single value."""
    match kind:
        case inspect.EnumType(cls=cls) | inspect.CustomType(cls=cls):
            return cls
        case inspect.IntType():
            return int
        case inspect.FloatType():
            return float
        case inspect.BoolType():
            return bool
        case inspect.StrType():
            return str
        case _:
            raise NotImplementedError(f"no words for a field of {kind}")


def stated(kind: inspect.Type) -> inspect.Type:
    """The type of a field, without its None."""
    if isinstance(kind, inspect.UnionType):
        return next(one for one in kind.types if not isinstance(one, inspect.NoneType))
    return kind


def without_blank_sections(kind: inspect.Type, value: Any) -> Any:
    """The tree without sections and lists that contain only comments: they count as not given."""
    kind = stated(kind)
    if isinstance(kind, inspect.StructType) and isinstance(value, Mapping):
        types = {field.encode_name: stated(field.type) for field in kind.fields}
        return {
            name: without_blank_sections(types[name], item) if name in types else item
            for name, item in value.items()
            if item is not None or not isinstance(types.get(name), _SECTIONS)
        }
    if isinstance(kind, inspect.ListType | inspect.VarTupleType) and isinstance(value, list):
        return [without_blank_sections(kind.item_type, item) for item in value]
    return value


_SECTIONS = inspect.StructType | inspect.ListType | inspect.VarTupleType | inspect.DictType


def dotted(path: str, name: str) -> str:
    """The path of a field; a name that could break the sentence is quoted."""
    plain = name.isprintable() and 0 < len(name) <= 80
    return ".".join(filter(None, (path, name if plain else show(name))))


def show(value: Any) -> str:
    """A value as an error message shows it: short, never a whole tree."""
    if isinstance(value, str):
        return f"{value[:40]!r}{'…' if len(value) > 40 else ''}"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else _kind_of(value)


def _kind_of(value: Any) -> str:
    if value is None:
        return "an empty value"
    kinds = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list"}
    return "a mapping" if isinstance(value, Mapping) else kinds.get(type(value), f"a {type(value).__name__}")


def suggest(name: str, known: Iterable[str], what: str) -> str:
    """A clause that suggests known names for an unknown one."""
    names = list(known)
    close = difflib.get_close_matches(name, names, 1)
    did_you_mean = f"did you mean {close[0]!r}? " if close else ""
    return f"{did_you_mean}known {what} are {list_of(names)}" if names else f"there are no {what}"


def list_of(names: Iterable[object]) -> str:
    """Names for a sentence; a long list is cut."""
    shown = [str(name) for name in names]
    if len(shown) > 12:
        shown = [*shown[:11], f"… and {len(shown) - 11} more"]
    return ", ".join(shown)
