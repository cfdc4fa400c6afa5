"""The controllers of the embedded cluster, driven by the changes of the store; nothing is polled.

They keep Deployments, ReplicaSets, DaemonSets, Jobs, disruption budgets and namespaces in step, and collect garbage.
Each controller is a function of one object; this module has the queue.
"""

import asyncio
from collections.abc import Callable

from colocate import telemetry
from colocate.lab.api import (
    daemon_sets,
    deployments,
    disruption,
    garbage,
    jobs,
    namespaces,
    replica_sets,
    resources,
)
from colocate.lab.api.changes import Change, Stored, StoreKey, Type
from colocate.lab.api.deletion import DeleteOptions, delete
from colocate.lab.api.objects import Object, controller_of, metadata, uid_of
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.resources import (
    DAEMON_SETS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    REPLICA_SETS,
    ServedResource,
)
from colocate.lab.api.store import NODE
from colocate.telemetry import Event

LOST_NODE_SECONDS = 40.0
"""Seconds before the pods of a deleted node are deleted, in case the node comes back."""

_BATCH = 50
_RETRY_SECONDS = 5.0
_AT_ONCE = DeleteOptions(gracePeriodSeconds=0)


class Controllers:
    """Runs the controllers until it is cancelled."""

    def __init__(self, registry: ObjectRegistry) -> None:
        self._registry = registry
        self._store = registry.store
        self._kinds = {resource.storage: resource for resource in resources.stored()}
        self._positions = {storage: self._store.changes(storage).end for storage in self._kinds}
        self._queue: dict[StoreKey, None] = {}
        self._orphaned: dict[str, None] = {}
        self._timers: dict[StoreKey, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._seen = self._store.changed.count
        self._read_at = (-1, -1)

    async def run(self) -> None:
        """Process the queue whenever something has changed."""
        self._look_at_all()
        watching = asyncio.create_task(self._watch())
        try:
            while True:
                await self.settle()
                await self._wake.wait()
        finally:
            timers = [watching, *self._timers.values()]
            for task in timers:
                task.cancel()
            await asyncio.gather(*timers, return_exceptions=True)

    async def settle(self) -> None:
        """Process the queue until it is empty."""
        self._wake.clear()
        self._read_changes()
        done = 0
        while self._queue or self._orphaned:
            self._one()
            self._read_changes()
            done += 1
            if done % _BATCH == 0:
                await asyncio.sleep(0)

    async def _watch(self) -> None:
        while True:
            self._seen = await self._store.changed.beyond(self._seen)
            self._wake.set()

    def _look_at_all(self) -> None:
        for storage in self._kinds:
            for stored in self._store.items(storage):
                self._queue[stored.key] = None

    def _read_changes(self) -> None:
        if self._read_at == (self._store.revision, self._store.generation):
            return
        self._read_at = (self._store.revision, self._store.generation)
        for storage in self._kinds:
            changes = self._store.changes(storage)
            batch = changes.since(self._positions[storage])
            self._positions[storage] = changes.end
            if batch is None:
                self._look_at_all()
                continue
            for change in batch:
                self._route(change)

    def _route(self, change: Change) -> None:
        """Queue every object that a change may affect."""
        key, body = change.now.key, change.now.body
        resource = self._kinds[key.resource]
        if change.type is Type.DELETED:
            self._orphaned[uid_of(body)] = None
            if resource is NODES:
                self._later(key, LOST_NODE_SECONDS)
        else:
            self._queue[key] = None
        for owner in metadata(body).get("ownerReferences") or []:
            self._queue_owner(owner, key.namespace, and_theirs=change.type is Type.DELETED)
        if change.before is not None and controller_of(body) != controller_of(change.before.body):
            for owner in metadata(change.before.body).get("ownerReferences") or []:
                self._queue_owner(owner, key.namespace)
        if resource is PODS:
            for budget in disruption.budgets_of(self._store, body, key.namespace):
                self._queue[budget.key] = None
        if resource is NODES:
            # A new, removed or changed node may need other DaemonSet pods.
            for daemon_set in self._store.items(DAEMON_SETS.storage):
                self._queue[daemon_set.key] = None
        if key.namespace and change.type is Type.DELETED:
            namespace = self._store.get(StoreKey(NAMESPACES.storage, "", key.namespace))
            if namespace is not None and metadata(namespace.body).get("deletionTimestamp"):
                self._queue[namespace.key] = None

    def _queue_owner(self, owner: Object, namespace: str, and_theirs: bool = False) -> None:
        """Queue an owner, and with `and_theirs` its owners: a Recreate deployment waits for every pod to go."""
        resource = resources.of_kind(owner["apiVersion"], owner["kind"])
        if resource is None:
            return
        key = StoreKey(resource.storage, namespace if resource.namespaced else "", owner["name"])
        self._queue[key] = None
        stored = self._store.get(key) if and_theirs else None
        for further in metadata(stored.body).get("ownerReferences") or [] if stored else []:
            self._queue_owner(further, namespace)

    def _one(self) -> None:
        if self._orphaned:
            uid = next(iter(self._orphaned))
            del self._orphaned[uid]
            self._guarded(StoreKey("", "", uid), lambda: garbage.collect_dependents(self._registry, uid))
            return
        key = next(iter(self._queue))
        del self._queue[key]
        self._guarded(key, lambda: self._reconcile(key))

    def _guarded(self, key: StoreKey, work: Callable[[], None]) -> None:
        """Run a controller. A failure affects no other object and is retried later."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the controllers outlive whatever one object does to them
            telemetry.logger().warning(
                Event.LAB_CONTROLLER_FAILED, key=str(key), error=f"{type(error).__name__}: {error}"
            )
            self._later(key, _RETRY_SECONDS)

    def _reconcile(self, key: StoreKey) -> None:
        stored = self._store.get(key)
        resource = self._kinds[key.resource]
        if stored is None:
            if resource is NODES:
                self._drop_pods(key.name)
            return
        if metadata(stored.body).get("ownerReferences"):
            garbage.collect(self._registry, resource, stored)
        garbage.see_to_finalizers(self._registry, resource, stored)
        current = self._store.get(key)
        if current is not None:
            self._control(resource, current)

    def _control(self, resource: ServedResource, stored: Stored) -> None:
        if resource is DEPLOYMENTS:
            deployments.carry_out(self._registry, stored)
        elif resource is REPLICA_SETS:
            again = replica_sets.carry_out(self._registry, stored)
            if again is not None:
                self._later(stored.key, again)
        elif resource in (DAEMON_SETS, JOBS):
            act = daemon_sets.carry_out if resource is DAEMON_SETS else jobs.carry_out
            again = act(self._registry, stored)
            if again is not None:
                self._later(stored.key, again)
        elif resource is NAMESPACES:
            namespaces.carry_out(self._registry, stored)
        elif resource is DISRUPTION_BUDGETS:
            self._tell_budget(stored)

    def _tell_budget(self, stored: Stored) -> None:
        found = disruption.count(self._store, stored.key.namespace, stored.body)
        status: Object = {
            "observedGeneration": metadata(stored.body).get("generation"),
            "disruptionsAllowed": found.disruptionsAllowed,
            "currentHealthy": found.currentHealthy,
            "desiredHealthy": found.desiredHealthy,
            "expectedPods": found.expectedPods,
        }
        if stored.body.get("status") != status:
            self._registry.force(DISRUPTION_BUDGETS, stored, lambda body: body.update(status=status))

    def _drop_pods(self, node: str) -> None:
        """Delete the pods of a deleted node: no kubelet will."""
        for stored in self._store.lookup(PODS.storage, NODE, node):
            delete(self._registry, PODS, stored.key.namespace, stored.key.name, _AT_ONCE)

    def _later(self, key: StoreKey, seconds: float) -> None:
        if key in self._timers or not key.resource:
            return

        async def ring() -> None:
            await self._registry.clock.sleep(seconds)
            del self._timers[key]
            self._queue[key] = None
            self._wake.set()

        self._timers[key] = asyncio.create_task(ring())
