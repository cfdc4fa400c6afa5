"""Feeds changes of nodes and pods from the store into the scheduler's view and queue."""

from colocate import telemetry
from colocate.lab.api.changes import Change, Stored, Type
from colocate.lab.api.objects import annotations_of, uid_of
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.resources import NODES, PODS
from colocate.lab.api.status import StatusError
from colocate.lab.api.store import NODE
from colocate.lab.scheduler import messages, statuses
from colocate.lab.scheduler.cluster import SchedulerCache
from colocate.lab.scheduler.facts import SchedulablePod, read_node, read_pod
from colocate.lab.scheduler.filters import FilterCause
from colocate.lab.scheduler.queue import Queue
from colocate.telemetry import Event


class Feed:
    """Reads changes from where it last stopped."""

    def __init__(
        self, registry: ObjectRegistry, cluster: SchedulerCache, queue: Queue, names: frozenset[str]
    ) -> None:
        self._registry = registry
        self._store = registry.store
        self._cluster = cluster
        self._queue = queue
        self._names = names
        """The scheduler names whose pods we place."""
        self._positions: dict[str, int] = {}

    def read(self) -> None:
        """Process all new changes; cheap where there are none."""
        better = FilterCause(0)
        for resource in (NODES, PODS):
            changes = self._store.changes(resource.storage)
            position = self._positions.get(resource.storage, -1)
            self._positions[resource.storage] = changes.end
            batch = changes.since(position) if position >= 0 else None
            if batch is None:
                better |= self._read_all(resource.storage)
                continue
            for change in batch:
                better |= self._read(change)
        if better:
            self._queue.happened(better, self._registry.clock.monotonic())

    def _read_all(self, storage: str) -> FilterCause:
        """Read everything: at the start, and when the store's history is too short."""
        current = self._store.items(storage)
        if storage == NODES.storage:
            there = {stored.key.name for stored in current}
            for one in [one for one in self._cluster.nodes if one.node.name not in there]:
                self._cluster.drop_node(one.node.name)
        else:
            uids = {uid_of(stored.body) for stored in current}
            for uid in (self._queue.uids() | self._cluster.uids()) - uids:
                self._drop_pod(uid)
        for stored in current:
            self._read(Change(Type.ADDED, stored, None))
        return FilterCause.anything()

    def _read(self, change: Change) -> FilterCause:
        stored = change.now
        try:
            if stored.key.resource == NODES.storage:
                return self._read_node(stored, change.type) | _of_annotations(change)
            if change.type is Type.DELETED:
                return self._drop_pod(uid_of(stored.body))
            return self._read_pod(stored, change.before)
        except (ValueError, StatusError) as error:
            # The API server does not check fields that only a scheduler reads.
            telemetry.logger().warning(Event.LAB_OBJECT_UNREADABLE, key=str(stored.key), error=str(error))
            return FilterCause(0)

    def _read_node(self, stored: Stored, type: Type) -> FilterCause:
        name = stored.key.name
        if type is Type.DELETED:
            self._cluster.drop_node(name)
            return FilterCause(0)
        known = self._cluster.find(name) is not None
        better = self._cluster.put_node(read_node(stored.body), stored)
        for held in [] if known else self._store.lookup(PODS.storage, NODE, name):
            self._read(Change(Type.ADDED, held, None))
        return better

    def _drop_pod(self, uid: str) -> FilterCause:
        self._queue.drop(uid)
        return self._cluster.drop_pod(uid)

    def _read_pod(self, stored: Stored, before: Stored | None) -> FilterCause:
        pod = read_pod(stored.body)
        better = self._cluster.put_pod(pod)
        if not self._is_mine(pod):
            self._queue.drop(pod.uid)
            return better
        changed = before is None or before.body.get("spec") != stored.body.get("spec")
        self._queue.put(pod, changed, self._registry.clock.monotonic())
        if pod.gated:
            statuses.not_scheduled(self._registry, stored, statuses.GATED, messages.GATED)
        return better

    def _is_mine(self, pod: SchedulablePod) -> bool:
        unplaced = not (pod.node_name or pod.is_over or pod.is_terminating)
        return unplaced and pod.scheduler_name in self._names


def _of_annotations(change: Change) -> FilterCause:
    """The cause to retry after a node's annotations changed: extenders use them, so pods that one refused are
    retried, as in kube-scheduler."""
    before = change.before
    changed = before is not None and annotations_of(before.body) != annotations_of(change.now.body)
    return FilterCause.EXTENDER if changed and change.type is not Type.DELETED else FilterCause(0)
