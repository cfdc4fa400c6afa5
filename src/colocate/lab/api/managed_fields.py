"""Who wrote which field of an object, and when: `metadata.managedFields`, as API servers record updates. Pure.

A manager owns the fields whose value it was the last to change; a field that goes has no owner. What an object
was created with in its status has none either. Recorded for nodes alone, which is where it is read. Left out:
server-side apply, which is recorded as any other update, and the conflicts that it would have.
"""

from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

from colocate.lab.api.objects import Object, encode

Path: TypeAlias = tuple[str, ...]

_KEYED = ("f:conditions", "f:addresses")
"""Lists whose items are told apart by their type; any other list is one value."""
_METADATA = ("labels", "annotations", "finalizers")
_LONGEST_NAME = 128


class Writer(msgspec.Struct, frozen=True):
    """Whoever writes, by the name that they give themselves, and the subresource through which."""

    manager: str
    subresource: str = ""


def manager_of(field_manager: str, user_agent: str) -> str:
    """The name of a client: the one that it says, or the program in its User-Agent."""
    return (field_manager or user_agent.partition("/")[0])[:_LONGEST_NAME] or "unknown"


def recorded(entries: list[Object], old: Object, new: Object, writer: Writer, now: str) -> list[Object]:
    """The entries after a write that made `new` of `old`."""
    before, after = (dict(_fields(obj, writer.subresource)) for obj in (old, new))
    changed = {path for path, value in after.items() if path not in before or before[path] != value}
    touched = changed | (before.keys() - after.keys())
    if not touched:
        return entries
    found: list[Object] = []
    known = False
    for entry in entries:
        owned = set(_paths(entry["fieldsV1"], ())) - touched
        if (entry["manager"], entry.get("subresource", "")) == (writer.manager, writer.subresource):
            known = True
            owned |= changed
            entry = entry | {"time": now} if changed else entry
        if owned:
            found.append(entry | {"fieldsV1": _tree(owned)})
    if changed and not known:
        found.append(_entry(writer, now, changed))
    return found


def _entry(writer: Writer, now: str, owned: set[Path]) -> Object:
    part = {"subresource": writer.subresource} if writer.subresource else {}
    return {
        "manager": writer.manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": now,
        "fieldsType": "FieldsV1",
        "fieldsV1": _tree(owned),
    } | part


def _fields(obj: Object, subresource: str) -> Iterator[tuple[Path, Any]]:
    """Every field that a write through this subresource can own, with its value."""
    marks = obj.get("metadata") or {}
    yield from _leaves({key: marks[key] for key in _METADATA if key in marks}, ("f:metadata",))
    part = subresource or "spec"
    yield from _leaves(obj.get(part) or {}, (f"f:{part}",))


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, list) and path[-1] in _KEYED:
        parts = {f"k:{encode({'type': one.get('type')}).decode()}": one for one in value}
    elif isinstance(value, dict):
        parts = {f"f:{key}": one for key, one in value.items()}
    else:
        yield path, value
        return
    if len(path) > 1:
        yield (*path, "."), None  # The map itself, owned by who made it.
    for step, one in parts.items():
        yield from _leaves(one, (*path, step))


def _paths(tree: Object, path: Path) -> Iterator[Path]:
    if not tree:
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
