"""Makes JSON patches (RFC 6902) that apply only to values that the author has seen. Pure: documents in, patches
out.

A patch tests what it expects before it changes anything, so that the second of two writers is refused and does not
undo the first. `apply` shows what a patch would do.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from colocate.model import json_patch
from colocate.model.json_patch import PatchFailed, equal, pointer

Json: TypeAlias = object
Steps: TypeAlias = Sequence[str | int]
"""The path to a value: names of fields and indexes of lists, unescaped."""


class _Operation(msgspec.Struct, frozen=True, tag_field="op", tag=str.lower):
    path: str


class Test(_Operation, frozen=True):
    """The value at the path must equal this one. A missing field equals null."""

    # Not a test case of pytest.
    __test__ = False

    value: Json


class Add(_Operation, frozen=True):
    """Sets a field, present or not; inserts into a list."""

    value: Json


class Replace(_Operation, frozen=True):
    value: Json


class Remove(_Operation, frozen=True):
    pass


Operation: TypeAlias = Test | Add | Replace | Remove
Patch: TypeAlias = tuple[Operation, ...]


def replace(steps: Steps, old: Json, new: Json) -> Patch:
    """Replace a value, provided that it is still `old`."""
    path = pointer(*steps)
    return (Test(path, old), Replace(path, new))


def remove(steps: Steps, old: Json) -> Patch:
    """Remove a value, provided that it is still `old`."""
    path = pointer(*steps)
    return (Test(path, old), Remove(path))


def unchanged(document: Mapping[str, Json]) -> Patch:
    """A precondition on the whole object: it was not written since it was read."""
    version = find(document, ("metadata", "resourceVersion"))
    if not isinstance(version, str):
        raise ValueError("the object has no metadata.resourceVersion: read it from the server first")
    return (Test(pointer("metadata", "resourceVersion"), version),)


def set_if_absent(seen: Mapping[str, Json], steps: Steps, value: Json) -> Patch:
    """Set a field that was absent when the object was read; empty where it was present.

    Implementations disagree on a test for absence, so the patch requires that the whole object is unchanged.
    Missing maps on the path are created.
    """
    if find(seen, steps) is not None:
        return ()
    return (*unchanged(seen), *_parents(seen, steps), Add(pointer(*steps), value))


def set_value(seen: Mapping[str, Json], steps: Steps, value: Json) -> Patch:
    """Set a field to a value, whatever it was; empty where it already has the value.

    None removes the field.
    """
    found = find(seen, steps)
    if equal(found, value):
        return ()
    if found is None:
        return set_if_absent(seen, steps, value)
    return remove(steps, found) if value is None else replace(steps, found, value)


def _parents(seen: Mapping[str, Json], steps: Steps) -> Patch:
    missing = [steps[:end] for end in range(1, len(steps)) if find(seen, steps[:end]) is None]
    return tuple(Add(pointer(*way), {}) for way in missing)


def find(document: Json, steps: Steps) -> Json | None:
    """The value at the path; None where there is none."""
    for step in steps:
        if isinstance(document, Mapping):
            document = document.get(str(step))
        elif isinstance(document, list):
            try:
                document = json_patch.get(document, [str(step)])
            except PatchFailed:
                return None
        else:
            return None
    return document


def apply(document: Json, patch: Sequence[Operation]) -> Json:
    """A patched copy of the document. PatchFailed where the patch does not apply."""
    return json_patch.apply(document, msgspec.to_builtins(patch))
