"""Brings the book in line with what a runtime has, when a way in connects. Pure.

Sandboxes that are gone are freed. A container that is not known is adopted by the CPUs that it really has. A known
one that is not there (it has ended, or was about to be made) keeps what it has as long as its sandbox is ready.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from colocate.cpus import ContainerKey, adopt
from colocate.cpus.placer.book import PlacedContainer, PlacementBook
from colocate.cpus.placer.requests import limit_of, merged, qos_of, resized, shares_of
from colocate.model.container import ContainerPhase, RuntimeContainer, RuntimeResources, RuntimeSandbox
from colocate.model.cpuset import EMPTY, CpuSet
from colocate.model.pod import QosClass


class FoundGroup(msgspec.Struct, frozen=True):
    """What the control group of a container says."""

    cpus: CpuSet = EMPTY
    mems: tuple[int, ...] = ()
    resources: RuntimeResources | None = None


def reconciled(
    book: PlacementBook,
    sandboxes: Sequence[RuntimeSandbox],
    containers: Sequence[RuntimeContainer],
    groups: Mapping[str, FoundGroup],
    beside: Mapping[str, tuple[int, ...]],
) -> PlacementBook:
    """The book as it should be now; the given one is not changed. `groups` and `beside` are by container id."""
    return _Reconciliation(book.copy(), sandboxes, containers, groups, beside).book


class _Reconciliation:
    def __init__(
        self,
        book: PlacementBook,
        sandboxes: Sequence[RuntimeSandbox],
        containers: Sequence[RuntimeContainer],
        groups: Mapping[str, FoundGroup],
        beside: Mapping[str, tuple[int, ...]],
    ) -> None:
        self.book = book
        self._groups = groups
        self._beside = beside
        alive = {each.id: each for each in sandboxes if each.ready}
        for sandbox_id in [own for own in book.sandboxes if own not in alive]:
            book.end_sandbox(sandbox_id)
        latest = _latest(each for each in containers if each.sandbox_id in alive)
        new = {key for key in latest if key not in book.containers}
        self._settle_the_absent(latest, {sandbox for sandbox, _ in new})
        unknown = []
        for key, container in latest.items():
            if key in book.containers:
                self._renew(book.containers[key], container)
            elif container.phase is not ContainerPhase.EXITED:
                unknown.append((alive[container.sandbox_id], container))
        self._adopt(unknown)
        if book.active:
            book.place_all()

    def _settle_the_absent(self, latest: Mapping[ContainerKey, RuntimeContainer], grown: set[str]) -> None:
        """Known containers that are not there have ended; where others came since, they were init containers."""
        for key, known in list(self.book.containers.items()):
            if key not in latest:
                self.book.end(known)
        for sandbox_id in grown:
            self.book.hand_on(sandbox_id)

    def _renew(self, known: PlacedContainer, seen: RuntimeContainer) -> None:
        phase = seen.phase if seen.phase is not ContainerPhase.UNKNOWN else known.phase
        resources = merged(known.resources, seen.resources)
        request = known.request
        if resources != known.resources:
            request = resized(request, resources)
        self.book.renew(
            msgspec.structs.replace(
                known, request=request, resources=resources, attempt=seen.attempt, id=seen.id, phase=phase
            )
        )

    def _adopt(self, unknown: Sequence[tuple[RuntimeSandbox, RuntimeContainer]]) -> None:
        running = []
        for sandbox, container in unknown:
            found = self._groups.get(container.id, FoundGroup())
            # Whose cpuset a container has that is there already nobody knows.
            told = merged(RuntimeResources(), container.resources)
            if told == RuntimeResources() and found.resources is not None:
                told = _exact(sandbox, found.resources)
            container = msgspec.structs.replace(container, resources=told)
            placed = self.book.note(sandbox, container, self._beside.get(container.id, ()))
            running.append((placed.request, found.cpus))
        if running and self.book.active:
            self.book.allocator = adopt(self.book.allocator, running)
            self.book.take_requests(request.key for request, _ in running)


def _latest(containers: Iterable[RuntimeContainer]) -> dict[ContainerKey, RuntimeContainer]:
    """Of each container its last start; of two with the same number, the one that runs."""
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
    """A control group rounds the request; of a guaranteed container it is the limit, which is exact."""
    limit = limit_of(resources)
    if limit is None or qos_of(sandbox.cgroup_parent, resources) is not QosClass.GUARANTEED:
        return resources
    return msgspec.structs.replace(resources, cpu_shares=shares_of(limit))
