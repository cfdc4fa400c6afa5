"""Reconciles the placements with what a runtime has, when it connects. Pure.

The CPUs of sandboxes that are gone become free. An unknown container is adopted with the CPUs that it really has. A
known container that is missing (it has ended, or was about to be created) keeps its CPUs while its sandbox is ready.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from colocate.cpus import ContainerKey, adopt
from colocate.cpus.placer.placements import PlacedContainer, Placements
from colocate.cpus.placer.requests import limit_of, merged, qos_of, resized, shares_of
from colocate.model.container import ContainerPhase, RuntimeContainer, RuntimeResources, RuntimeSandbox
from colocate.model.cpuset import EMPTY, CpuSet
from colocate.model.pod import QosClass


class FoundGroup(msgspec.Struct, frozen=True):
    """Cpuset and resources of a container by its control group."""

    cpus: CpuSet = EMPTY
    mems: tuple[int, ...] = ()
    resources: RuntimeResources | None = None


class RuntimeRecord:
    """All sandboxes and containers that a runtime has announced, kept while the CPU topology cannot be read.

    Its steps have the names of those of `Placements`. It places and refuses no container.
    """

    def __init__(
        self, sandboxes: Sequence[RuntimeSandbox] = (), containers: Sequence[RuntimeContainer] = ()
    ) -> None:
        self._sandboxes = {each.id: each for each in sandboxes}
        self._containers = {each.id: each for each in containers}
        self._begun: dict[ContainerKey, RuntimeContainer] = {}

    def found(self) -> tuple[list[RuntimeSandbox], list[RuntimeContainer]]:
        """All sandboxes and containers."""
        return list(self._sandboxes.values()), list(self._containers.values())

    def running(self) -> list[tuple[RuntimeSandbox, RuntimeContainer]]:
        """Containers that have not ended, with their sandboxes."""
        return [
            (self._sandboxes[each.sandbox_id], each)
            for each in self._containers.values()
            if each.sandbox_id in self._sandboxes and not each.has_ended
        ]

    def sandbox_of(self, container_id: str) -> RuntimeSandbox | None:
        found = self._containers.get(container_id)
        return None if found is None else self._sandboxes.get(found.sandbox_id)

    def begun(self) -> list[tuple[RuntimeSandbox, RuntimeContainer]]:
        """Containers that the runtime is creating, and whose ids are not known yet."""
        return [(self._sandboxes[key[0]], each) for key, each in self._begun.items()]

    def create(self, sandbox: RuntimeSandbox, container: RuntimeContainer) -> None:
        self._sandboxes[sandbox.id] = sandbox
        if container.id:
            self._containers[container.id] = container
        else:
            self._begun[sandbox.id, container.name] = container

    def created(self, key: ContainerKey, container_id: str) -> None:
        if container := self._begun.pop(key, None):
            self._containers[container_id] = msgspec.structs.replace(
                container, id=container_id, phase=ContainerPhase.CREATED
            )

    def not_created(self, key: ContainerKey, _: object = None) -> None:
        self._begun.pop(key, None)

    def lose_sight(self, key: ContainerKey) -> None:
        self._begun.pop(key, None)

    def update(self, container_id: str, resources: RuntimeResources) -> None:
        if found := self._containers.get(container_id):
            self._note(found, resources=merged(found.resources, resources))

    def started(self, container_id: str) -> None:
        if found := self._containers.get(container_id):
            self._note(found, phase=ContainerPhase.RUNNING)

    def stopped(self, container_id: str) -> None:
        if found := self._containers.get(container_id):
            self._note(found, phase=ContainerPhase.EXITED)

    def removed(self, container_id: str) -> None:
        self._containers.pop(container_id, None)

    def end_sandbox(self, sandbox_id: str) -> None:
        self._sandboxes.pop(sandbox_id, None)
        for own in [own for own, each in self._containers.items() if each.sandbox_id == sandbox_id]:
            del self._containers[own]
        for key in [key for key in self._begun if key[0] == sandbox_id]:
            del self._begun[key]

    def _note(self, found: RuntimeContainer, **changes: object) -> None:
        self._containers[found.id] = msgspec.structs.replace(found, **changes)


def reconciled(
    placements: Placements,
    sandboxes: Sequence[RuntimeSandbox],
    containers: Sequence[RuntimeContainer],
    groups: Mapping[str, FoundGroup],
    beside: Mapping[str, tuple[int, ...]],
) -> Placements:
    """A reconciled copy. `groups` and `beside`, the NUMA nodes of devices, are by container id."""
    return _Reconciliation(placements.copy(), sandboxes, containers, groups, beside).placements


class _Reconciliation:
    def __init__(
        self,
        placements: Placements,
        sandboxes: Sequence[RuntimeSandbox],
        containers: Sequence[RuntimeContainer],
        groups: Mapping[str, FoundGroup],
        beside: Mapping[str, tuple[int, ...]],
    ) -> None:
        self.placements = placements
        self._groups = groups
        self._beside = beside
        alive = {each.id: each for each in sandboxes if each.ready}
        for sandbox_id in [own for own in placements.sandboxes if own not in alive]:
            placements.end_sandbox(sandbox_id)
        latest = _latest(each for each in containers if each.sandbox_id in alive)
        new = {key for key in latest if key not in placements.containers}
        self._settle_the_absent(latest, {sandbox for sandbox, _ in new})
        unknown = []
        for key, container in latest.items():
            if key in placements.containers:
                self._renew(placements.containers[key], container)
            elif container.phase is not ContainerPhase.EXITED:
                unknown.append((alive[container.sandbox_id], container))
        self._adopt(unknown)
        if placements.active:
            placements.place_all()

    def _settle_the_absent(self, latest: Mapping[ContainerKey, RuntimeContainer], grown: set[str]) -> None:
        """Missing containers have ended; in a sandbox with new containers, they were init containers."""
        for key, known in list(self.placements.containers.items()):
            if key not in latest:
                self.placements.end(known)
        for sandbox_id in grown:
            self.placements.hand_on(sandbox_id)

    def _renew(self, known: PlacedContainer, seen: RuntimeContainer) -> None:
        phase = seen.phase if seen.phase is not ContainerPhase.UNKNOWN else known.phase
        resources = merged(known.resources, seen.resources)
        request = known.request
        if resources != known.resources:
            request = resized(request, resources)
        self.placements.renew(
            msgspec.structs.replace(
                known, request=request, resources=resources, attempt=seen.attempt, id=seen.id, phase=phase
            )
        )

    def _adopt(self, unknown: Sequence[tuple[RuntimeSandbox, RuntimeContainer]]) -> None:
        running = []
        for sandbox, container in unknown:
            found = self._groups.get(container.id, FoundGroup())
            # An existing cpuset may be the kubelet's or ours: it does not count as requested.
            told = merged(RuntimeResources(), container.resources)
            if told == RuntimeResources() and found.resources is not None:
                told = _exact(sandbox, found.resources)
            container = msgspec.structs.replace(container, resources=told)
            placed = self.placements.note(sandbox, container, self._beside.get(container.id, ()))
            running.append((placed.request, found.cpus))
        if running and self.placements.active:
            self.placements.allocator = adopt(self.placements.allocator, running)
            self.placements.take_requests(request.key for request, _ in running)


def _latest(containers: Iterable[RuntimeContainer]) -> dict[ContainerKey, RuntimeContainer]:
    """The last start of each container; of two with the same attempt, the one that runs."""
    latest: dict[ContainerKey, RuntimeContainer] = {}
    for each in containers:
        key = (each.sandbox_id, each.name)
        other = latest.get(key)
        if other is None or _rank(each) > _rank(other):
            latest[key] = each
    return latest


def _rank(container: RuntimeContainer) -> tuple[int, bool]:
    return container.attempt, container.phase is not ContainerPhase.EXITED


def _exact(sandbox: RuntimeSandbox, resources: RuntimeResources) -> RuntimeResources:
    """A control group rounds the request. A guaranteed container requests its limit, which is exact."""
    limit = limit_of(resources)
    if limit is None or qos_of(sandbox.cgroup_parent, resources) is not QosClass.GUARANTEED:
        return resources
    return msgspec.structs.replace(resources, cpu_shares=shares_of(limit))
