"""Helpers to read, copy and arrange the JSON objects of the API server, and their timestamps.

An object in the store is *bare*: it has no kind and no apiVersion, because its key implies them. Both are added
when it is sent.
"""

from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec

Object: TypeAlias = dict[str, Any]

encode = msgspec.json.encode
decode = msgspec.json.decode

_METADATA_ORDER = (
    "name",
    "generateName",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "managedFields",
)


def clone(obj: Object) -> Object:
    """A deep copy; objects of the store are shared and must not be changed in place."""
    copied: Object = decode(encode(obj))
    return copied


def at(obj: Any, *path: str) -> Any:
    """The value at a path; None where any step of it is missing."""
    for step in path:
        if not isinstance(obj, dict):
            return None
        obj = obj.get(step)
    return obj


def metadata(obj: Object) -> Object:
    found = obj.get("metadata")
    return found if isinstance(found, dict) else {}


def name_of(obj: Object) -> str:
    return str(metadata(obj).get("name") or "")


def namespace_of(obj: Object) -> str:
    return str(metadata(obj).get("namespace") or "")


def uid_of(obj: Object) -> str:
    return str(metadata(obj).get("uid") or "")


def labels_of(obj: Object) -> dict[str, str]:
    return metadata(obj).get("labels") or {}


def annotations_of(obj: Object) -> dict[str, str]:
    return metadata(obj).get("annotations") or {}


def is_terminating(obj: Object) -> bool:
    return metadata(obj).get("deletionTimestamp") is not None


def controller_of(obj: Object) -> Object | None:
    """The owner reference that is marked as the controller."""
    owners: list[Object] = metadata(obj).get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), None)


def condition(obj: Object, type: str) -> Object | None:
    """A condition of the status, by its type."""
    conditions: list[Object] = at(obj, "status", "conditions") or []
    return next((one for one in conditions if one.get("type") == type), None)


def is_ready(obj: Object) -> bool:
    return (condition(obj, "Ready") or {}).get("status") == "True"


def arrange_metadata(given: Object) -> Object:
    """Metadata in the order of an API server, without empty fields."""
    known = {key: given[key] for key in _METADATA_ORDER if given.get(key) not in (None, {}, [], "")}
    return known | {key: value for key, value in given.items() if key not in _METADATA_ORDER}


def rfc3339(seconds: float) -> str:
    """A time as in metadata, to the second."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(seconds: float) -> str:
    """A time as in leases and new events, to the microsecond."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: Any) -> float | None:
    """Seconds since the epoch; None where the text is not a time."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
