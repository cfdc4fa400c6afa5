"""Strategic merge patch: a merge patch that merges some lists by a key. Pure.

The name of a field decides whether its list merges, and by which key: that is enough for the kinds served here,
where no name has two meanings. `$setElementOrder` is ignored: new items go to the end of a list. Raises ValueError
where the patch is inconsistent.
"""

from collections.abc import Mapping
from typing import Any

from colocate.lab.api.objects import Object

MERGE_KEYS: Mapping[str, str] = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "podIPs": "ip",
    "ports": "containerPort",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "secrets": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Lists of objects that are merged; every other list (tolerations, taints, rules) is replaced as a whole."""

PRIMITIVE_SETS = frozenset({"finalizers", "podCIDRs"})
"""Lists of strings that are merged."""

_ORDER = "$setElementOrder/"
_DELETE_PRIMITIVE = "$deleteFromPrimitiveList/"


def apply(document: Object, patch: Object) -> Object:
    """A new object; neither of the given ones is changed."""
    if not isinstance(patch, dict):
        raise ValueError("the patch is not an object")
    return _merge_maps(document, patch)


def _merge_maps(document: Any, patch: Object) -> Object:
    directive = patch.get("$patch", "merge")
    given = {key: value for key, value in patch.items() if key != "$patch"}
    match directive:
        case "replace":
            return given
        case "delete":
            return {}
        case "merge":
            merged = dict(document) if isinstance(document, dict) else {}
        case _:
            raise ValueError(f"unknown patch directive {directive!r}")
    for key, value in given.items():
        if not key.startswith("$"):
            _merge_field(merged, key, value)
    for key, value in given.items():
        if key.startswith(_DELETE_PRIMITIVE):
            field = key.removeprefix(_DELETE_PRIMITIVE)
            merged[field] = [one for one in merged.get(field) or [] if one not in _list(key, value)]
        elif key == "$retainKeys":
            kept = _list(key, value)
            merged = {field: one for field, one in merged.items() if field in kept}
        elif key.startswith("$") and not key.startswith(_ORDER):
            raise ValueError(f"unknown patch directive {key!r}")
    return merged


def _merge_field(merged: Object, key: str, value: Any) -> None:
    if value is None:
        merged.pop(key, None)
    elif isinstance(value, dict):
        if value.get("$patch") == "delete":
            merged.pop(key, None)
        else:
            merged[key] = _merge_maps(merged.get(key), value)
    elif isinstance(value, list):
        merged[key] = _merge_lists(key, merged.get(key), value)
    else:
        merged[key] = value


def _list(key: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{key} is not a list")
    return value


def _merge_lists(field: str, document: Any, patch: list[Any]) -> list[Any]:
    current = document if isinstance(document, list) else []
    if field in PRIMITIVE_SETS and all(isinstance(one, str) for one in patch):
        return [*current, *(one for one in dict.fromkeys(patch) if one not in current)]
    merge_key = MERGE_KEYS.get(field)
    if merge_key is None or not all(isinstance(one, dict) for one in [*current, *patch]):
        return patch
    if any(one.get("$patch") == "replace" for one in patch):
        return [one for one in patch if "$patch" not in one]
    return _merge_named(field, merge_key, current, patch)


def _merge_named(field: str, merge_key: str, current: list[Object], patch: list[Object]) -> list[Object]:
    merged = list(current)
    for element in patch:
        if merge_key not in element:
            raise ValueError(f"an element of {field} does not contain the merge key {merge_key}")
        places = [place for place, one in enumerate(merged) if one.get(merge_key) == element[merge_key]]
        if element.get("$patch") == "delete":
            merged = [one for one in merged if one.get(merge_key) != element[merge_key]]
        elif places:
            merged[places[0]] = _merge_maps(merged[places[0]], element)
        else:
            merged.append(_merge_maps({}, element))
    return merged
