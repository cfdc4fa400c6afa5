"""The placements of a node: its sandboxes, its containers and their CPUs. Each runtime event is one step.

Pure: no I/O, no clock. A step changes a `copy`, which is kept or dropped as a whole. `pin_changes` compares the pins
before and after a step and says which containers the runtime must change.

The key of a container is its sandbox and its name. Its CPUs are kept for its next start until the sandbox ends.
Runtimes do not say which containers are init containers: a container that ended before another one was created for
the first time counts as one, and passes its CPUs on. If that was wrong, it gets other CPUs at its next start.
"""

from collections.abc import Iterable, Mapping

import msgspec

from colocate.cpus import (
    ContainerKey,
    ContainerRole,
    CpuAllocator,
    CpuMove,
    CpuRefused,
    CpuRequest,
    CpuSettings,
    CpuState,
    assign_running,
)
from colocate.cpus.placer.requests import merged, request_of, resized
from colocate.cpus.placer.section import CpuDefaults
from colocate.model.container import (
    ContainerPhase,
    CpuPin,
    RuntimeContainer,
    RuntimeResources,
    RuntimeSandbox,
)
from colocate.model.cpu_topology import CpuTopology

STATE_VERSION = 1


class PlacedContainer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of one container; its key is the key of its request."""

    request: CpuRequest
    resources: RuntimeResources = RuntimeResources()
    attempt: int = 0
    id: str = ""
    """The id of its last start; empty while the runtime creates it."""
    phase: ContainerPhase = ContainerPhase.UNKNOWN
    passed: str = ""
    """Why it started without a decision; the next audit places it. Empty: it was decided."""

    @property
    def key(self) -> ContainerKey:
        return self.request.key

    @property
    def has_ended(self) -> bool:
        return self.phase is ContainerPhase.EXITED


class PlacementState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The placements as data, for the state file."""

    version: int = STATE_VERSION
    off: bool = False
    unpinned: tuple[ContainerKey, ...] = ()
    """Containers to unpin: they were pinned, and the runtime has not confirmed yet that they have all CPUs."""
    sandboxes: tuple[RuntimeSandbox, ...] = ()
    containers: tuple[PlacedContainer, ...] = ()
    cpus: CpuState = CpuState()


class Placements:
    """All placements, and the steps that change them."""

    def __init__(
        self, allocator: CpuAllocator, *, active: bool = True, defaults: CpuDefaults | None = None
    ) -> None:
        """If not `active` (policy none), containers are recorded and none is pinned."""
        self.allocator = allocator
        self.sandboxes: dict[str, RuntimeSandbox] = {}
        self.containers: dict[ContainerKey, PlacedContainer] = {}
        self.off = False
        self.unpinned: set[ContainerKey] = set()
        self._active = active
        self._defaults = defaults or CpuDefaults()
        self._keys: dict[str, ContainerKey] = {}
        """Keys by container id, including the ids of earlier starts."""

    @property
    def active(self) -> bool:
        return self._active and not self.off

    @property
    def is_settled(self) -> bool:
        """Whether all running containers are placed and no CPUs are kept for later containers of a pod."""
        return not self.allocator.state().handed and not any(
            map(self._lacks_a_place, self.containers.values())
        )

    def copy(self) -> "Placements":
        """A copy for the next step."""
        twin = object.__new__(Placements)
        twin.allocator = self.allocator.copy()
        twin.sandboxes, twin.containers = dict(self.sandboxes), dict(self.containers)
        twin.off, twin._active, twin._defaults = self.off, self._active, self._defaults
        twin.unpinned = set(self.unpinned)
        twin._keys = dict(self._keys)
        return twin

    def state(self) -> PlacementState:
        """The data to store, without annotations: the requests contain what was read from them."""
        return PlacementState(
            off=self.off,
            unpinned=tuple(sorted(self.unpinned)),
            sandboxes=tuple(
                msgspec.structs.replace(each, annotations={}) if each.annotations else each
                for each in self.sandboxes.values()
            ),
            containers=tuple(self.containers.values()),
            cpus=self.allocator.state(),
        )

    @classmethod
    def restored(
        cls,
        topology: CpuTopology,
        settings: CpuSettings,
        state: PlacementState,
        *,
        active: bool = True,
        defaults: CpuDefaults | None = None,
    ) -> tuple["Placements", tuple[CpuMove, ...]]:
        """Restore a stored state on this machine with these settings; also returns the moves that were necessary."""
        allocator, moves = CpuAllocator.restored(topology, settings, state.cpus)
        placements = cls(allocator, active=active, defaults=defaults)
        placements.off = state.off
        placements.sandboxes = {each.id: each for each in state.sandboxes}
        placements.containers = {
            each.key: each for each in state.containers if each.key[0] in placements.sandboxes
        }
        placements._keys = {each.id: each.key for each in placements.containers.values() if each.id}
        for pod in sorted({key[0] for key in allocator.assignments} | set(allocator.state().handed)):
            if pod not in placements.sandboxes:
                allocator.release_pod(pod)
        for key in [key for key in allocator.assignments if key not in placements.containers]:
            allocator.release(key)
        placements.unpinned = {key for key in state.unpinned if key in placements.containers}
        if not placements.active:
            placements._unpin_all()
        return placements, moves if placements.active else ()

    def find(self, container_id: str) -> PlacedContainer | None:
        """The container whose last start has this id."""
        key = self._keys.get(container_id)
        found = self.containers.get(key) if key else None
        return found if found is not None and found.id == container_id else None

    def find_key(self, pin: CpuPin) -> ContainerKey | None:
        return self._keys.get(pin.container_id)

    def create(
        self,
        sandbox: RuntimeSandbox,
        container: RuntimeContainer,
        beside: tuple[int, ...] = (),
        passed: str = "",
    ) -> PlacedContainer:
        """Place a new container; CpuRefused if a strict wish cannot be met. With `passed`, only record it."""
        if (sandbox.id, container.name) not in self.containers:
            self.hand_on(sandbox.id)
        begun = msgspec.structs.replace(container, phase=ContainerPhase.CREATED)
        placed = self.note(sandbox, begun, beside, passed)
        self.unpinned.discard(placed.key)
        if self.active and not passed:
            self.allocator.assign(placed.request)
        return placed

    def note(
        self,
        sandbox: RuntimeSandbox,
        container: RuntimeContainer,
        beside: tuple[int, ...] = (),
        passed: str = "",
    ) -> PlacedContainer:
        """Record a container that exists, without placing it."""
        placed = PlacedContainer(
            request=request_of(sandbox, container, self._defaults, beside),
            resources=container.resources,
            attempt=container.attempt,
            id=container.id,
            phase=container.phase,
            passed=passed,
        )
        self.sandboxes[sandbox.id] = sandbox
        self._note(placed)
        return placed

    def created(self, key: ContainerKey, container_id: str) -> None:
        found = self.containers.get(key)
        if found is not None:
            self._note(msgspec.structs.replace(found, id=container_id))

    def lose_sight(self, key: ContainerKey) -> None:
        """It was not created, and its earlier state is unknown: keep its CPUs until its sandbox ends."""
        found = self.containers.get(key)
        if found is not None and not found.id:
            self.end(found)

    def not_created(self, key: ContainerKey, before: PlacedContainer | None) -> None:
        """The runtime could not create it: restore what was known before."""
        if before is not None:
            self._note(before)
            self.allocator.end(key)
            return
        self.containers.pop(key, None)
        self.allocator.release(key)

    def update(
        self, container_id: str, resources: RuntimeResources, passed: str = ""
    ) -> PlacedContainer | None:
        """Resize a container; CpuRefused if a strict wish can no longer be met, None if the container is unknown.

        With `passed`, record the new request and keep the CPUs.
        """
        found = self.find(container_id)
        if found is None:
            return None
        now = merged(found.resources, resources)
        request = resized(found.request, now)
        decided = self.active and not passed and found.key in self.allocator.assignments
        placed = msgspec.structs.replace(
            found, request=request, resources=now, passed="" if decided else passed or found.passed
        )
        self._note(placed)
        if decided:
            self.allocator.resize(request)
        return placed

    def started(self, container_id: str) -> None:
        if found := self.find(container_id):
            self._note(msgspec.structs.replace(found, phase=ContainerPhase.RUNNING))

    def stopped(self, container_id: str) -> None:
        """Its CPUs are kept until its sandbox ends."""
        if found := self.find(container_id):
            self.end(found)

    def end(self, placed: PlacedContainer) -> None:
        self._note(msgspec.structs.replace(placed, phase=ContainerPhase.EXITED))
        self.allocator.end(placed.key)

    def renew(self, placed: PlacedContainer) -> None:
        """Take over changes that no event announced; the CPUs change as little as possible."""
        self._note(placed)
        given = self.allocator.assignments.get(placed.key)
        if placed.has_ended:
            self.allocator.end(placed.key)
        elif given is not None and given.request == placed.request:
            self.allocator.put(msgspec.structs.replace(given, ended=False))
        elif given is not None:
            try:
                self.allocator.resize(placed.request)
            except CpuRefused:
                self.allocator.release(placed.key)

    def removed(self, container_id: str) -> None:
        """When a container is created again, the runtime removes the old one before or after."""
        self.stopped(container_id)
        self._keys.pop(container_id, None)

    def end_sandbox(self, sandbox_id: str) -> None:
        """Free all CPUs of its containers."""
        self.allocator.release_pod(sandbox_id)
        self.sandboxes.pop(sandbox_id, None)
        self.unpinned = {key for key in self.unpinned if key[0] != sandbox_id}
        for key in [key for key in self.containers if key[0] == sandbox_id]:
            del self.containers[key]
        for container_id in [own for own, key in self._keys.items() if key[0] == sandbox_id]:
            del self._keys[container_id]

    def place(self, key: ContainerKey) -> None:
        """Place a running container; it already runs, so a strict wish is no longer enforced."""
        found = self.containers[key]
        if not self.active:
            return
        request = assign_running(self.allocator, found.request)
        self.unpinned.discard(key)
        self._note(msgspec.structs.replace(found, request=request, passed=""))

    def take_requests(self, keys: Iterable[ContainerKey]) -> None:
        """Copy the requests from the assignments: adoption may have dropped a strict wish."""
        for key in keys:
            given = self.allocator.assignments.get(key)
            if given is not None:
                self._note(msgspec.structs.replace(self.containers[key], request=given.request))

    def switch(self, off: bool) -> None:
        """Off: unpin all containers. On: place all of them again, those with exclusive CPUs first."""
        if off == self.off:
            return
        self.off = off
        if not self.active:
            self._unpin_all()
        else:
            self.place_all()

    def place_all(self) -> None:
        """Place all running containers that have no CPUs yet or started without a decision."""
        missing = [each for each in self.containers.values() if self._lacks_a_place(each)]
        for each in sorted(missing, key=lambda each: not each.request.is_whole):
            self.place(each.key)

    def pins(self) -> dict[ContainerKey, CpuPin]:
        """The CPUs and memory nodes that each live container should have."""
        cpusets = self.allocator.cpusets
        return {
            key: CpuPin(
                container_id=self.containers[key].id,
                cpus=cpusets[key],
                mems=self.allocator.mems_of(each),
            )
            for key, each in self.allocator.assignments.items()
            if key in self.containers and not self.containers[key].has_ended
        }

    def _lacks_a_place(self, each: PlacedContainer) -> bool:
        return not each.has_ended and (bool(each.passed) or each.key not in self.allocator.assignments)

    def _unpin_all(self) -> None:
        passed = [each for each in self.containers.values() if each.passed]
        # A container that started without a decision is pinned as well: to the shared CPUs.
        self.unpinned |= {*self.allocator.assignments, *(each.key for each in passed)}
        for each in passed:
            self._note(msgspec.structs.replace(each, passed=""))
        for pod in self.sandboxes:
            self.allocator.release_pod(pod)

    def _note(self, placed: PlacedContainer) -> None:
        self.containers[placed.key] = placed
        if placed.id:
            self._keys[placed.id] = placed.key

    def hand_on(self, sandbox_id: str) -> None:
        """A new container is created: the ended ones of its sandbox were init containers and pass their CPUs on."""
        for key, each in list(self.containers.items()):
            if key[0] != sandbox_id or not each.has_ended or each.request.role is ContainerRole.INIT:
                continue
            request = msgspec.structs.replace(each.request, role=ContainerRole.INIT)
            self.containers[key] = msgspec.structs.replace(each, request=request)
            given = self.allocator.assignments.get(key)
            if given is not None:
                self.allocator.put(msgspec.structs.replace(given, request=request))
                self.allocator.end(key)


class PinChanges(msgspec.Struct, frozen=True):
    """The containers that the runtime must change, in two parts."""

    urgent: tuple[CpuPin, ...]
    """Containers that lose CPUs. They are changed first: other containers are about to get these CPUs."""
    later: tuple[ContainerKey, ...]
    """Containers that only gain CPUs; they can wait."""


def pin_changes(
    before: Mapping[ContainerKey, CpuPin],
    after: Mapping[ContainerKey, CpuPin],
    without: Iterable[ContainerKey],
) -> PinChanges:
    """Compare the pins of all containers but those in `without`."""
    left_out = set(without)
    urgent: list[CpuPin] = []
    later: list[ContainerKey] = []
    for key, new in after.items():
        old = before.get(key)
        if key in left_out or not new.container_id or old == new:
            continue
        if old is None:
            later.append(key)
            continue
        kept = old.cpus & new.cpus
        if kept != old.cpus:
            # First remove lost CPUs, later add gained ones: no container runs on exclusive CPUs of another.
            urgent.append(msgspec.structs.replace(new, cpus=kept or new.cpus, mems=()))
        if new.cpus != kept or new.mems != old.mems:
            later.append(key)
    return PinChanges(tuple(urgent), tuple(later))
