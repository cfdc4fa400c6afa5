"""The metrics API, as served by a metrics-server: the use of nodes and pods, for `kubectl top`.

A meter provides the measurements. A node's annotations `lab.colocate.dev/usage-cpu` and `usage-memory` override
them, so that users can make a node look busy. Nodes and pods without measurements have no metrics. Nothing is
stored.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Protocol

import msgspec

from colocate.clock import Clock
from colocate.lab.api.changes import Stored, StoreKey
from colocate.lab.api.lists import select
from colocate.lab.api.objects import Object, annotations_of, encode, metadata, name_of, rfc3339, uid_of
from colocate.lab.api.quantities import in_binary, in_decimal, parse
from colocate.lab.api.resources import NODE_METRICS, NODES, POD_METRICS, PODS, ServedResource
from colocate.lab.api.selectors import ObjectSelection
from colocate.lab.api.status import not_found
from colocate.lab.api.store import ObjectStore

RESOLUTION = 15.0
"""Seconds between two measurements, as in a metrics-server."""
ANNOTATION = "lab.colocate.dev/usage-"
_MEASURED_OF: Mapping[ServedResource, ServedResource] = {NODE_METRICS: NODES, POD_METRICS: PODS}


class MetricsUsage(msgspec.Struct, frozen=True):
    """The use of CPU and memory."""

    cpu: float = 0.0
    """CPU in cores."""
    memory: int = 0
    """Memory in bytes."""


class NodeReading(msgspec.Struct, frozen=True):
    """The use of a node in the `window` of seconds that ended at `time`."""

    time: float
    window: float
    usage: MetricsUsage


class PodReading(msgspec.Struct, frozen=True):
    """The use of a pod's containers."""

    time: float
    window: float
    containers: Mapping[str, MetricsUsage]


class Meter(Protocol):
    """Measures nodes and pods; None where there is no measurement yet, or none at all."""

    def node(self, name: str) -> NodeReading | None: ...

    def pod(self, uid: str) -> PodReading | None: ...


class MetricsServer:
    """Answers requests to the metrics API."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.meter: Meter | None = None

    def get(self, resource: ServedResource, namespace: str, name: str) -> Stored:
        """The metrics of one node or pod; raises the Status of one that has none."""
        of = _MEASURED_OF[resource]
        subject = self._store.get(StoreKey(of.storage, namespace, name))
        if subject is None:
            raise not_found(of.qualified, name)
        found = self._of(resource, [subject])
        if not found:
            place = f"{namespace}/{name}" if namespace else name
            raise not_found(f"{resource.kind.lower()}.{resource.group}", place)
        return found[0]

    def select(self, resource: ServedResource, namespace: str, selection: ObjectSelection) -> list[Stored]:
        """The metrics of a selection of nodes or pods, without those that have none."""
        return self._of(resource, select(self._store, _MEASURED_OF[resource], namespace, selection))

    def _of(self, resource: ServedResource, subjects: Iterable[Stored]) -> list[Stored]:
        told = self._node if resource is NODE_METRICS else self._pod
        found: list[Stored] = []
        for subject in subjects:
            if (body := told(subject.body)) is not None:
                found.append(Stored(subject.key, 0, body, encode(body)))
        return found

    def _node(self, node: Object) -> Object | None:
        reading = self.meter.node(name_of(node)) if self.meter else None
        try:
            claimed = _claimed(annotations_of(node))
        except ValueError:
            return None
        if reading is None:
            if not claimed:
                return None
            reading = NodeReading(self._clock.time(), RESOLUTION, MetricsUsage())
        return self._opening(node, reading) | {"usage": _shown(reading.usage) | claimed}

    def _pod(self, pod: Object) -> Object | None:
        reading = self.meter.pod(uid_of(pod)) if self.meter else None
        if reading is None:
            return None
        containers = [{"name": name, "usage": _shown(used)} for name, used in reading.containers.items()]
        return self._opening(pod, reading) | {"containers": containers}

    def _opening(self, subject: Object, reading: NodeReading | PodReading) -> Object:
        marks = metadata(subject)
        kept: Object = {key: marks[key] for key in ("name", "namespace") if key in marks}
        kept["creationTimestamp"] = rfc3339(self._clock.time())
        if labels := marks.get("labels"):
            kept["labels"] = labels
        return {"metadata": kept, "timestamp": rfc3339(reading.time), "window": _span(reading.window)}


def _shown(usage: MetricsUsage) -> Object:
    nanos = Fraction(round(usage.cpu * 1e9), 10**9)
    return {"cpu": in_decimal(nanos), "memory": in_binary(Fraction(usage.memory))}


def _claimed(annotations: Mapping[str, str]) -> Object:
    """The use that a node's annotations claim; ValueError where they are invalid."""
    found: Object = {}
    for name, shown in (("cpu", in_decimal), ("memory", in_binary)):
        if (text := annotations.get(ANNOTATION + name)) is not None:
            amount = parse(text)
            if amount < 0:
                raise ValueError(f"{text} of {name} is negative")
            found[name] = shown(amount)
    return found


def _span(seconds: float) -> str:
    """A duration as Go writes it: 15s, 20.064s, 1m15s."""
    minutes, rest = divmod(round(seconds, 3), 60)
    return f"{minutes:.0f}m{rest:g}s" if minutes else f"{rest:g}s"
