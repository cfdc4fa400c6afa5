"""Converts events between core/v1 and events.k8s.io/v1, which share one storage, and records the events of
controllers.
"""

from colocate.lab.api.objects import Object, metadata, name_of, rfc3339, uid_of
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.resources import EVENTS, ServedResource

_RENAMED = {
    "involvedObject": "regarding",
    "message": "note",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
}
_RENAMED_BACK = {new: old for old, new in _RENAMED.items()}
_CORE_ORDER = (
    "metadata",
    "involvedObject",
    "reason",
    "message",
    "source",
    "firstTimestamp",
    "lastTimestamp",
    "count",
    "type",
    "eventTime",
    "series",
    "action",
    "related",
    "reportingComponent",
    "reportingInstance",
)
_EMPTY: Object = {
    "source": {},
    "firstTimestamp": None,
    "lastTimestamp": None,
    "eventTime": None,
    "reportingComponent": "",
    "reportingInstance": "",
}


def to_v1(event: Object) -> Object:
    """A stored event with the field names of events.k8s.io/v1."""
    return {_RENAMED.get(field, field): value for field, value in event.items()}


def from_v1(event: Object) -> Object:
    """An event of events.k8s.io/v1 with the field names of the store."""
    return {_RENAMED_BACK.get(field, field): value for field, value in event.items()}


def completed(event: Object) -> Object:
    """An event with the fields that are shown even if empty, in their order."""
    whole = _EMPTY | event
    ordered = {field: whole[field] for field in _CORE_ORDER if field in whole}
    return ordered | {field: value for field, value in whole.items() if field not in ordered}


def record(
    registry: ObjectRegistry,
    resource: ServedResource,
    about: Object,
    component: str,
    reason: str,
    message: str,
) -> None:
    """Write a Normal event about an object."""
    namespace = metadata(about).get("namespace") or "default"
    now = rfc3339(registry.clock.time())
    body: Object = {
        "metadata": {"generateName": f"{name_of(about)}."},
        "involvedObject": {
            "kind": resource.kind,
            "namespace": namespace,
            "name": name_of(about),
            "uid": uid_of(about),
            "apiVersion": resource.api_version,
            "resourceVersion": metadata(about).get("resourceVersion") or "",
        },
        "reason": reason,
        "message": message,
        "source": {"component": component},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "type": "Normal",
        "eventTime": None,
        "reportingComponent": component,
        "reportingInstance": "",
    }
    registry.create(EVENTS, namespace, body)
