"""Who runs in which sandbox and has which CPUs: every event of a runtime as a step from one state to the next.

Pure: no I/O, no clock. A step is taken on a `copy`, which is kept or thrown away as a whole. What the runtime must be
told follows from the pins before and after (`pin_changes`).

A container is known by its sandbox and its name: what it has is kept for its next start until its sandbox ends. Which
containers are init containers nobody tells: one that has ended before another is created for the first time counts
as one, and hands its CPUs on. Should it have been another kind, it gets others when it starts again.
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
from colocate.cpus.placer.requests import WishDefaults, merged, request_of, resized
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
    """A container as it is remembered; its key is that of its request."""

    request: CpuRequest
    resources: RuntimeResources = RuntimeResources()
    attempt: int = 0
    id: str = ""
    """Of its last start; nothing while the runtime makes it."""
    phase: ContainerPhase = ContainerPhase.UNKNOWN
    passed: str = ""
    """Why it was let through without a decision of its own; the audit places it."""

    @property
    def key(self) -> ContainerKey:
        return self.request.key

    @property
    def has_ended(self) -> bool:
        return self.phase is ContainerPhase.EXITED


class PlacementState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that is remembered, as data."""

    version: int = STATE_VERSION
    off: bool = False
    unpinned: tuple[ContainerKey, ...] = ()
    """Containers that were pinned, are to be so no more, and are not known to have all CPUs again."""
    sandboxes: tuple[RuntimeSandbox, ...] = ()
    containers: tuple[PlacedContainer, ...] = ()
    cpus: CpuState = CpuState()


class PlacementBook:
    """The state, and the steps."""

    def __init__(
        self, allocator: CpuAllocator, *, active: bool = True, defaults: WishDefaults | None = None
    ) -> None:
        """Where it is not `active` (policy none), containers are known and none is pinned."""
        self.allocator = allocator
        self.sandboxes: dict[str, RuntimeSandbox] = {}
        self.containers: dict[ContainerKey, PlacedContainer] = {}
        self.off = False
        self.unpinned: set[ContainerKey] = set()
        self._active = active
        self._defaults = defaults or WishDefaults()
        self._keys: dict[str, ContainerKey] = {}
        """By the ids of containers, earlier starts among them."""

    @property
    def active(self) -> bool:
        return self._active and not self.off

    @property
    def is_settled(self) -> bool:
        """Whether everybody who runs is placed, and nothing is kept for containers to come."""
        return not self.allocator.state().handed and not any(
            map(self._lacks_a_place, self.containers.values())
        )

    def copy(self) -> "PlacementBook":
        """One to take a step on."""
        twin = object.__new__(PlacementBook)
        twin.allocator = self.allocator.copy()
        twin.sandboxes, twin.containers = dict(self.sandboxes), dict(self.containers)
        twin.off, twin._active, twin._defaults = self.off, self._active, self._defaults
        twin.unpinned = set(self.unpinned)
        twin._keys = dict(self._keys)
        return twin

    def state(self) -> PlacementState:
        """What must be remembered. Annotations are not: what follows from them is in the requests."""
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
        defaults: WishDefaults | None = None,
    ) -> tuple["PlacementBook", tuple[CpuMove, ...]]:
        """The book of a saved state on this machine under these settings, and who had to move."""
        allocator, moves = CpuAllocator.restored(topology, settings, state.cpus)
        book = cls(allocator, active=active, defaults=defaults)
        book.off = state.off
        book.sandboxes = {each.id: each for each in state.sandboxes}
        book.containers = {each.key: each for each in state.containers if each.key[0] in book.sandboxes}
        book._keys = {each.id: each.key for each in book.containers.values() if each.id}
        for pod in sorted({key[0] for key in allocator.assignments} | set(allocator.state().handed)):
            if pod not in book.sandboxes:
                allocator.release_pod(pod)
        for key in [key for key in allocator.assignments if key not in book.containers]:
            allocator.release(key)
        book.unpinned = {key for key in state.unpinned if key in book.containers}
        if not book.active:
            book._unpin_all()
        return book, moves if book.active else ()

    def find(self, container_id: str) -> PlacedContainer | None:
        """The container with this id, if it is its last start."""
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
        """CpuRefused where a strict wish cannot be had; with `passed`, it is noted and not placed."""
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
        """A container that is there; it is not placed."""
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
        """It was not made, and nobody knows what was there before: what it has is kept until its sandbox ends."""
        found = self.containers.get(key)
        if found is not None and not found.id:
            self.end(found)

    def not_created(self, key: ContainerKey, before: PlacedContainer | None) -> None:
        """The runtime could not make it: all is as before."""
        if before is not None:
            self._note(before)
            self.allocator.end(key)
            return
        self.containers.pop(key, None)
        self.allocator.release(key)

    def update(
        self, container_id: str, resources: RuntimeResources, passed: str = ""
    ) -> PlacedContainer | None:
        """CpuRefused where a strict wish cannot be had any more; None where the container is not known.

        With `passed`, what it asks for is noted, and what it has stays.
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
        """What it has is kept until its sandbox ends."""
        if found := self.find(container_id):
            self.end(found)

    def end(self, placed: PlacedContainer) -> None:
        self._note(msgspec.structs.replace(placed, phase=ContainerPhase.EXITED))
        self.allocator.end(placed.key)

    def renew(self, placed: PlacedContainer) -> None:
        """What is known of a container has changed while nobody told; what it has stays as near as can be."""
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
        """Of a container that is created again the runtime removes the old one, before or after."""
        self.stopped(container_id)
        self._keys.pop(container_id, None)

    def end_sandbox(self, sandbox_id: str) -> None:
        """All that its containers had is free."""
        self.allocator.release_pod(sandbox_id)
        self.sandboxes.pop(sandbox_id, None)
        self.unpinned = {key for key in self.unpinned if key[0] != sandbox_id}
        for key in [key for key in self.containers if key[0] == sandbox_id]:
            del self.containers[key]
        for container_id in [own for own, key in self._keys.items() if key[0] == sandbox_id]:
            del self._keys[container_id]

    def place(self, key: ContainerKey) -> None:
        """CPUs for a container that runs without a decision; a strict wish counts no more, for it runs already."""
        found = self.containers[key]
        if not self.active:
            return
        request = assign_running(self.allocator, found.request)
        self.unpinned.discard(key)
        self._note(msgspec.structs.replace(found, request=request, passed=""))

    def take_requests(self, keys: Iterable[ContainerKey]) -> None:
        """What these ask for is what they were given for: a strict wish may have been left out."""
        for key in keys:
            given = self.allocator.assignments.get(key)
            if given is not None:
                self._note(msgspec.structs.replace(self.containers[key], request=given.request))

    def switch(self, off: bool) -> None:
        """Off: nobody is pinned any more. On: everybody is placed again, those with whole CPUs of their own first."""
        if off == self.off:
            return
        self.off = off
        if not self.active:
            self._unpin_all()
        else:
            self.place_all()

    def place_all(self) -> None:
        """Place everybody who runs and is not placed, or was let through since."""
        missing = [each for each in self.containers.values() if self._lacks_a_place(each)]
        for each in sorted(missing, key=lambda each: not each.request.is_whole):
            self.place(each.key)

    def pins(self) -> dict[ContainerKey, CpuPin]:
        """What every container that is there should have."""
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
        # Who was let through runs on the CPUs that all share, which is a pin as well.
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
        """A container is created for the first time: those of its sandbox that have ended were init containers."""
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
    """What the runtime must be told, in two parts."""

    urgent: tuple[CpuPin, ...]
    """Containers that lose CPUs: others are about to have them."""
    later: tuple[ContainerKey, ...]
    """Containers that gain some: they may wait."""


def pin_changes(
    before: Mapping[ContainerKey, CpuPin],
    after: Mapping[ContainerKey, CpuPin],
    without: Iterable[ContainerKey],
) -> PinChanges:
    """The changes of those that were there before and are there after."""
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
            # Nothing that is another's alone for a moment: what is lost goes first, what is gained comes later.
            urgent.append(msgspec.structs.replace(new, cpus=kept or new.cpus, mems=()))
        if new.cpus != kept or new.mems != old.mems:
            later.append(key)
    return PinChanges(tuple(urgent), tuple(later))
