"""JSON patches (RFC 6902) that change only what their author has seen. Pure: documents in, patches out.

A patch here says what it expects before it changes anything, so that of two writers the second is refused
instead of undoing the first. `apply` shows what a patch would do; only the server does it.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from colocate.errors import ColocateError

Json: TypeAlias = object
Steps: TypeAlias = Sequence[str | int]
"""The way to a value: names of fields and places in lists, unescaped."""


class _Operation(msgspec.Struct, frozen=True, tag_field="op", tag=str.lower):
    path: str


class Test(_Operation, frozen=True):
    """The value at the path must be this one. A field that is not there tests equal to null."""

    # Not a test case of pytest.
    __test__ = False

    value: Json


class Add(_Operation, frozen=True):
    """Sets a field, whether it is there or not; inserts into a list."""

    value: Json


class Replace(_Operation, frozen=True):
    value: Json


class Remove(_Operation, frozen=True):
    pass


Operation: TypeAlias = Test | Add | Replace | Remove
Patch: TypeAlias = tuple[Operation, ...]


class DoesNotApply(ColocateError):
    """A test that does not hold, or a path that is not there."""


def pointer(*steps: str | int) -> str:
    """A JSON pointer (RFC 6901). `~` is escaped first, or the `~` of `~1` would be escaped again."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)


def steps_of(text: str) -> list[str]:
    """The steps of a pointer: what `pointer` does, undone in the opposite order."""
    if text and not text.startswith("/"):
        raise ValueError(f"{text!r} is no JSON pointer: it does not begin with '/'")
    return [step.replace("~1", "/").replace("~0", "~") for step in text.split("/")[1:]]


def replace(steps: Steps, old: Json, new: Json) -> Patch:
    """Set a value that is there, provided that it is still the one that was seen."""
    path = pointer(*steps)
    return (Test(path, old), Replace(path, new))


def remove(steps: Steps, old: Json) -> Patch:
    """Remove a value, provided that it is still the one that was seen."""
    path = pointer(*steps)
    return (Test(path, old), Remove(path))


def unchanged(document: Mapping[str, Json]) -> Patch:
    """A precondition on the whole object: that nobody has written it since it was read."""
    version = find(document, ("metadata", "resourceVersion"))
    if not isinstance(version, str):
        raise ValueError("the object has no metadata.resourceVersion: read it from the server first")
    return (Test(pointer("metadata", "resourceVersion"), version),)


def set_if_absent(seen: Mapping[str, Json], steps: Steps, value: Json) -> Patch:
    """Set a field that was not there when the object was read; nothing where it was.

    JSON patch has no test for absence that every implementation agrees on, so the whole object must be as
    it was seen. Maps on the way that are missing are made.
    """
    if find(seen, steps) is not None:
        return ()
    return (*unchanged(seen), *_parents(seen, steps), Add(pointer(*steps), value))


def set_value(seen: Mapping[str, Json], steps: Steps, value: Json) -> Patch:
    """Bring one field to a value, from whatever was seen there; nothing where it already has it.

    None removes the field.
    """
    found = find(seen, steps)
    if same(found, value):
        return ()
    if found is None:
        return set_if_absent(seen, steps, value)
    return remove(steps, found) if value is None else replace(steps, found, value)


def _parents(seen: Mapping[str, Json], steps: Steps) -> Patch:
    missing = [steps[:end] for end in range(1, len(steps)) if find(seen, steps[:end]) is None]
    return tuple(Add(pointer(*way), {}) for way in missing)


def find(document: Json, steps: Steps) -> Json | None:
    """What is at the end of the way; None where there is nothing."""
    for step in steps:
        if isinstance(document, Mapping):
            document = document.get(str(step))
        elif isinstance(document, list) and _is_place(str(step), len(document)):
            document = document[int(step)]
        else:
            return None
    return document


def same(one: Json, other: Json) -> bool:
    """Whether two values are the same JSON: Python alone takes True for 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def apply(document: Json, patch: Sequence[Operation]) -> Json:
    """What the patch would make of a document, which stays as it is. Raises DoesNotApply."""
    root: dict[str, Json] = {"": copy.deepcopy(document)}
    for operation in patch:
        _apply_one(root, ["", *steps_of(operation.path)], operation)
    return root[""]


def _apply_one(root: Json, steps: list[str], operation: Operation) -> None:
    parent = _walk(root, steps[:-1], operation.path)
    step, path = steps[-1], operation.path
    match operation:
        case Test(value=value):
            if isinstance(parent, list):
                _check_there(parent, step, path)
            found = find(parent, [step])
            if not same(found, value):
                raise DoesNotApply(f"{path or 'the document'} is {found!r}, not {value!r}")
        case Add(value=value) if isinstance(parent, list):
            if step != "-" and not _is_place(step, len(parent) + 1):
                raise DoesNotApply(f"{path}: there is no place {step} in a list of {len(parent)}")
            parent.insert(len(parent) if step == "-" else int(step), copy.deepcopy(value))
        case Add(value=value):
            _put(parent, step, value)
        case Replace(value=value):
            _check_there(parent, step, path)
            _put(parent, step, value)
        case Remove() if not path:
            raise DoesNotApply("the whole document cannot be removed")
        case Remove():
            _check_there(parent, step, path)
            if isinstance(parent, list):
                del parent[int(step)]
            elif isinstance(parent, dict):
                del parent[step]


def _walk(document: Json, steps: list[str], path: str) -> Json:
    for step in steps:
        _check_there(document, step, path)
        document = find(document, [step])
    if not isinstance(document, dict | list):
        raise DoesNotApply(f"{path}: what should hold it is {document!r}")
    return document


def _check_there(parent: Json, step: str, path: str) -> None:
    there = isinstance(parent, dict) and step in parent
    if not there and not (isinstance(parent, list) and _is_place(step, len(parent))):
        raise DoesNotApply(f"{path}: there is no {step!r}")


def _put(parent: Json, step: str, value: Json) -> None:
    if isinstance(parent, list):
        parent[int(step)] = copy.deepcopy(value)
    elif isinstance(parent, dict):
        parent[step] = copy.deepcopy(value)


def _is_place(step: str, length: int) -> bool:
    # A number too long for int() to read is too long for a list as well.
    if not step.isascii() or not step.isdigit() or len(step) > 9:
        return False
    return str(int(step)) == step and int(step) < length
