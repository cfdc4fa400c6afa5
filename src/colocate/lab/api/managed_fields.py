"""Records which manager wrote which field, in `metadata.managedFields`, as API servers record updates. Pure.

A manager owns the fields that it was the last to change; a removed field has no owner, nor has the status with
which an object was created. Recorded only for nodes, where it is read. Not implemented: server-side apply, which is
recorded like any other update, and its conflicts.
"""

from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

from colocate.lab.api.objects import Object, encode

Path: TypeAlias = tuple[str, ...]

_KEYED = ("f:conditions", "f:addresses")
"""Lists whose items are identified by their type; any other list is one value."""
_METADATA = ("labels", "annotations", "finalizers")
_LONGEST_NAME = 128
_MISSING = object()


class FieldWriter(msgspec.Struct, frozen=True):
    """The writer of an update: its manager name, and the subresource that it used."""

    manager: str
    subresource: str = ""


def manager_of(field_manager: str, user_agent: str) -> str:
    """The manager name of a client: the one that it states, or the program in its User-Agent."""
    return (field_manager or user_agent.partition("/")[0])[:_LONGEST_NAME] or "unknown"


def recorded(entries: list[Object], old: Object, new: Object, writer: FieldWriter, now: str) -> list[Object]:
    """The entries after a write that made `new` of `old`.

    Thousands of nodes send heartbeats, so only differences are walked, and an entry that already owns them keeps
    its tree.
    """
    found = dict(_differences(_signed(old, writer.subresource), _signed(new, writer.subresource), ()))
    changed = {path for path, is_there in found.items() if is_there}
    signed: list[Object] = []
    known = False
    for entry in entries:
        tree = entry["fieldsV1"]
        ours = (entry["manager"], entry.get("subresource", "")) == (writer.manager, writer.subresource)
        lost = [path for path in found if _has(tree, path) and not (ours and path in changed)]
        gained = [path for path in changed if ours and not _has(tree, path)]
        if lost or gained:
            tree = _tree({*_paths(tree, ()), *gained}.difference(lost))
        if ours:
            known = True
            entry = entry | {"time": now} if changed else entry
        if tree:
            signed.append(entry | {"fieldsV1": tree})
    if changed and not known:
        signed.append(_entry(writer, now, changed))
    return signed


def _entry(writer: FieldWriter, now: str, owned: set[Path]) -> Object:
    part = {"subresource": writer.subresource} if writer.subresource else {}
    return {
        "manager": writer.manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": now,
        "fieldsType": "FieldsV1",
        "fieldsV1": _tree(owned),
    } | part


def _signed(obj: Object, subresource: str) -> Object:
    """The part of an object that writes to this subresource can own."""
    marks = obj.get("metadata") or {}
    part = subresource or "spec"
    return {"metadata": {key: marks[key] for key in _METADATA if key in marks}, part: obj.get(part) or {}}


def _differences(old: Any, new: Any, path: Path) -> Iterator[tuple[Path, bool]]:
    """The fields that differ, and whether each still exists."""
    if old is not _MISSING and old == new:
        return
    before, after = _parts(old, path), _parts(new, path)
    if before is not None and after is not None:
        for step in {**before, **after}:
            yield from _differences(before.get(step, _MISSING), after.get(step, _MISSING), (*path, step))
        return
    gone, come = set(_leaves(old, path)), set(_leaves(new, path))
    yield from ((leaf, False) for leaf in gone - come)
    yield from ((leaf, True) for leaf in come)


def _parts(value: Any, path: Path) -> dict[str, Any] | None:
    """The fields or items of a value; None where it is a single value."""
    if isinstance(value, list) and path[-1] in _KEYED:
        return {f"k:{encode({'type': one.get('type')}).decode()}": one for one in value}
    return {f"f:{key}": one for key, one in value.items()} if isinstance(value, dict) else None


def _leaves(value: Any, path: Path) -> Iterator[Path]:
    if value is _MISSING:
        return
    parts = _parts(value, path)
    if parts is None:
        yield path
        return
    if len(path) > 1:
        yield (*path, ".")  # The map itself, owned by its creator.
    for step, one in parts.items():
        yield from _leaves(one, (*path, step))


def _has(tree: Object, path: Path) -> bool:
    for step in path:
        if step not in tree:
            return False
        tree = tree[step]
    return not tree


def _paths(tree: Object, path: Path) -> Iterator[Path]:
    if path and not tree:
        yield path
    for step, below in tree.items():
        yield from _paths(below, (*path, step))


def _tree(paths: set[Path]) -> Object:
    tree: Object = {}
    for path in sorted(paths):
        place = tree
        for step in path:
            place = place.setdefault(step, {})
    return tree
