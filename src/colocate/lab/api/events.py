"""Events of the two APIs, core/v1 and events.k8s.io/v1: one storage, two sets of names. Pure."""

from colocate.lab.api.objects import Object

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
    """A stored event in the words of events.k8s.io/v1."""
    return {_RENAMED.get(field, field): value for field, value in event.items()}


def from_v1(event: Object) -> Object:
    """An event of events.k8s.io/v1 in the words of the store."""
    return {_RENAMED_BACK.get(field, field): value for field, value in event.items()}


def completed(event: Object) -> Object:
    """An event with those fields that are shown even where they are empty, in their order."""
    whole = _EMPTY | event
    ordered = {field: whole[field] for field in _CORE_ORDER if field in whole}
    return ordered | {field: value for field, value in whole.items() if field not in ordered}
