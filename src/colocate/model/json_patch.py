"""JSON patch (RFC 6902). Pure: a document and operations in, a new document out.

Raises PatchFailed where the operations cannot be applied, and ValueError where they are not operations.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from colocate.errors import ColocateError

MAX_OPERATIONS = 10_000
MAX_COPIED = 3 * 1024 * 1024
"""How many bytes `copy` may add in one patch: copying a document into itself doubles it each time."""

Json: TypeAlias = Any


class PatchFailed(ColocateError):
    """An operation does not fit the document: a path that is not there, a test that does not hold."""


def apply(document: Json, operations: Sequence[Json]) -> Json:
    """A new document; the given one is left as it is."""
    result: Json = msgspec.json.decode(msgspec.json.encode(document))
    budget = MAX_COPIED
    for number, operation in enumerate(operations):
        if not isinstance(operation, dict):
            raise ValueError(f"operation {number} is {operation!r}, not an object")
        result, budget = _one(result, operation, budget)
    return result


def _one(document: Json, operation: dict[str, Json], budget: int) -> tuple[Json, int]:
    path = parse_pointer(operation.get("path"))
    match operation.get("op"):
        case "add":
            return _add(document, path, _value(operation)), budget
        case "remove":
            return _remove(document, path)[0], budget
        case "replace":
            get(document, path)
            return _set(document, path, _value(operation)), budget
        case "test":
            if not equal(_get_or_none(document, path), operation.get("value")):
                raise PatchFailed(f"testing value {operation.get('path')} failed")
            return document, budget
        case "move":
            source = parse_pointer(operation.get("from"))
            if path[: len(source)] == source and path != source:
                raise PatchFailed(f"{operation.get('from')} cannot be moved into itself")
            document, moved = _remove(document, source)
            return _add(document, path, moved), budget
        case "copy":
            copied = msgspec.json.encode(get(document, parse_pointer(operation.get("from"))))
            if len(copied) > budget:
                raise PatchFailed(f"the patch copies more than {MAX_COPIED} bytes")
            return _add(document, path, msgspec.json.decode(copied)), budget - len(copied)
    raise PatchFailed(f"unexpected operation {operation.get('op')!r}")


def pointer(*steps: str | int) -> str:
    """A JSON pointer (RFC 6901). `~` is escaped first, or the `~` of `~1` would be escaped again."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)


def parse_pointer(text: Json) -> list[str]:
    """The steps of a pointer: the inverse of `pointer`."""
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise PatchFailed(f"{text!r} is not a JSON pointer")
    return [step.replace("~1", "/").replace("~0", "~") for step in text.split("/")[1:]]


def get(document: Json, path: Sequence[str]) -> Json:
    for step in path:
        document = _child(document, step)
    return document


def equal(one: Json, other: Json) -> bool:
    """Whether two values are the same JSON. (In Python, True equals 1.)"""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def _get_or_none(document: Json, path: Sequence[str]) -> Json:
    """The value to test. A missing value equals null, as on a real server."""
    try:
        return get(document, path)
    except PatchFailed:
        if path and isinstance(_get_or_none(document, path[:-1]), dict):
            return None
        raise


def _value(operation: dict[str, Json]) -> Json:
    if "value" not in operation:
        raise PatchFailed(f"the operation {operation.get('op')!r} has no value")
    return operation["value"]


def _child(parent: Json, step: str) -> Json:
    if isinstance(parent, dict) and step in parent:
        return parent[step]
    if isinstance(parent, list):
        return parent[_index(step, len(parent) - 1)]
    raise PatchFailed(f"there is no {step!r}")


def _index(step: str, last: int) -> int:
    if not step.isascii() or not step.isdigit() or (len(step) > 1 and step[0] == "0"):
        raise PatchFailed(f"{step!r} is not an index")
    # A number too long for int() to read is too long for a list as well.
    if len(step) > 9 or int(step) > last:
        raise PatchFailed(f"the index {step} is out of bounds")
    return int(step)


def _add(document: Json, path: Sequence[str], value: Json) -> Json:
    if not path:
        return value
    parent = get(document, path[:-1])
    if isinstance(parent, list):
        parent.insert(len(parent) if path[-1] == "-" else _index(path[-1], len(parent)), value)
    elif isinstance(parent, dict):
        parent[path[-1]] = value
    else:
        raise PatchFailed(f"nothing can be added below {path[:-1]}")
    return document


def _set(document: Json, path: Sequence[str], value: Json) -> Json:
    if not path:
        return value
    parent = get(document, path[:-1])
    if isinstance(parent, list):
        parent[_index(path[-1], len(parent) - 1)] = value
    else:
        parent[path[-1]] = value
    return document


def _remove(document: Json, path: Sequence[str]) -> tuple[Json, Json]:
    if not path:
        raise PatchFailed("the whole document cannot be removed")
    parent = get(document, path[:-1])
    removed = _child(parent, path[-1])
    if isinstance(parent, list):
        del parent[_index(path[-1], len(parent) - 1)]
    else:
        del parent[path[-1]]
    return document, removed
