"""The placer: turns every event of a runtime into a step of the placements, whether it came by CRI or by NRI.

A step is decided in time and stored before the answer goes out (`keeper`). If a step fails or takes too long, the
request passes with the shared CPUs, and the next audit places the container: it starts as it would without Colocate.
A strict wish that cannot be met is an answer, not a failure.

While the CPU topology cannot be read there are no placements: requests pass, and a record keeps what they announce.
When the topology becomes readable, the stored state is reconciled with the record.

`upkeep` writes to running containers between events.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NoReturn

import msgspec

from colocate import telemetry
from colocate.clock import Clock, SystemClock
from colocate.cpus import ContainerKey, CpuRefused
from colocate.cpus.placer.keeper import NO_TOPOLOGY, PlacementKeeper, Undecided
from colocate.cpus.placer.machine import PlacementMachine
from colocate.cpus.placer.placements import PlacedContainer, Placements, PlacementState
from colocate.cpus.placer.reconciliation import FoundGroup, RuntimeRecord, reconciled
from colocate.cpus.placer.section import CpusSection
from colocate.cpus.placer.store import PlacementStore
from colocate.host.device_nodes import device_nodes
from colocate.model.container import CpuPin, RuntimeContainer, RuntimeResources, RuntimeSandbox
from colocate.model.cpuset import CpuSet
from colocate.runtime.events import PinWriter, PlacementRefused, Placing
from colocate.telemetry import Event

_TOO_EARLY = "too early"


class Placer:
    """Implements `ContainerEvents`."""

    def __init__(
        self,
        section: CpusSection,
        store: PlacementStore,
        machine: PlacementMachine | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.keeper = PlacementKeeper(section, store, machine or PlacementMachine(), clock or SystemClock())
        self.writer: PinWriter | None = None
        """Writes pins to the runtime; None while none is connected."""
        self.last_creation: dict[str, float] = {}
        """When the last container of a sandbox was created, by sandbox id."""
        self.seen: set[str] = set()
        """Ids of containers that had a control group: without one they have ended."""
        self._record: RuntimeRecord | None = None
        """What the runtime has, while there are no placements; None until it has connected."""
        self._begun: dict[ContainerKey, PlacedContainer | None] = {}
        """Containers that a runtime is creating, with what was known of each before."""

    async def look_again(self) -> None:
        """Begin to place if the CPU topology was unreadable and is readable now."""
        keeper = self.keeper
        async with keeper.lock:
            if not keeper.is_blind:
                return
            record = self._record
            keeper.restore()
            if keeper.placements is None or record is None:
                return
            for sandbox, container in record.running():
                if self.has_ended_unseen(sandbox, container.id):
                    record.stopped(container.id)
            wrong = await self._synchronized(record)
            for sandbox, container in record.begun():
                self._begun[sandbox.id, container.name] = None
                keeper.note(partial(_let_through, sandbox=sandbox, container=container))
            keeper.unwritten |= {key for pin in wrong if (key := keeper.placements.find_key(pin))}
            keeper.changed.changed()

    async def synchronize(
        self,
        sandboxes: Sequence[RuntimeSandbox],
        containers: Sequence[RuntimeContainer],
        writer: PinWriter,
    ) -> Sequence[CpuPin]:
        async with self.keeper.lock:
            record = RuntimeRecord(sandboxes, containers)
            if self.keeper.placements is None:
                self._record = record
            try:
                return await self._synchronized(record)
            finally:
                self.writer = writer
                self.keeper.changed.changed()

    async def _synchronized(self, record: RuntimeRecord) -> list[CpuPin]:
        """Reconcile the placements with all that a runtime has; returns the pins that its containers lack."""
        keeper = self.keeper
        self._begun.clear()
        sandboxes, containers = record.found()
        groups = await asyncio.to_thread(keeper.machine.groups, record.running())
        beside = {each.id: nodes for each in containers if (nodes := device_nodes(each.devices))}
        self.seen = set(groups)
        known = {each.id for each in sandboxes}
        self.last_creation = {own: at for own, at in self.last_creation.items() if own in known}
        if keeper.placements is None:
            keeper.restore()
        if keeper.placements is None:
            return []
        self._record = None
        try:
            after = self._reconciled(keeper.placements, record, groups, beside)
        except Exception as error:  # noqa: BLE001 -- the runtime must go on whatever fails here
            keeper.failed("synchronize", error)
            return []
        adopted = [key[1] for key in after.containers if key not in keeper.placements.containers]
        if adopted:
            telemetry.logger().info(Event.PLACEMENT_ADOPTED, containers=adopted[:100], count=len(adopted))
        await keeper.store.save(after.state())
        keeper.use(after)
        keeper.unwritten, keeper.urgent = set(), {}
        wrong = []
        for pin in map(keeper.outgoing, keeper.pins.values()):
            found = groups.get(pin.container_id)
            if pin.container_id and (found is None or not agrees(pin, found.cpus, found.mems)):
                wrong.append(pin)
        # Containers to unpin are not among these: `upkeep` writes them, and records when that is done.
        return wrong

    def _reconciled(
        self,
        known: Placements,
        record: RuntimeRecord,
        groups: Mapping[str, FoundGroup],
        beside: Mapping[str, tuple[int, ...]],
    ) -> Placements:
        """The placements with what runs; if they cannot be reconciled, they are rebuilt from what runs alone."""
        try:
            return reconciled(known, *record.found(), groups, beside)
        except Exception as error:
            fresh = self.keeper.restored(PlacementState(off=known.off))
            if fresh is None:
                raise
            rebuilt = reconciled(fresh, *record.found(), groups, beside)
            if not rebuilt.active:
                # The list of containers to unpin is lost: unpin all of them.
                rebuilt.unpinned = set(rebuilt.containers)
            self.keeper.failed("synchronize", error)
            self.keeper.store.set_aside("it does not match what runs")
            return rebuilt

    async def detached(self, writer: PinWriter) -> None:
        if self.writer is writer:
            self.writer = None

    async def create(self, sandbox: RuntimeSandbox, container: RuntimeContainer) -> Placing:
        keeper = self.keeper
        async with keeper.lock:
            key = (sandbox.id, container.name)
            self.last_creation[sandbox.id] = keeper.clock.monotonic()
            beside = await keeper.machine.beside(sandbox, container)
            before = keeper.placements.containers.get(key) if keeper.placements else None
            ended = self._ended_unseen(sandbox, container)

            def step(placements: Placements) -> None:
                for container_id in ended:
                    placements.stopped(container_id)
                placements.create(sandbox, container, beside)

            with telemetry.CPUS_DECISION_SECONDS.labels("create").time():
                try:
                    after = await keeper.decide(step)
                except CpuRefused as refused:
                    self._refused(sandbox, refused)
                except Undecided as why:
                    self._begun[key] = before
                    return self._passed(sandbox, container, str(why))
                self._begun[key] = before
                others = await keeper.keep(after, key)
                return Placing(self._own(key), others)

    async def found(self, sandbox: RuntimeSandbox, container: RuntimeContainer) -> Placing:
        keeper = self.keeper
        async with keeper.lock:
            key = (sandbox.id, container.name)
            beside = await keeper.machine.beside(sandbox, container)

            def step(placements: Placements) -> None:
                passed = _TOO_EARLY if placements.active else ""
                placements.create(sandbox, container, beside, passed=passed)
                placements.place(key)

            with telemetry.CPUS_DECISION_SECONDS.labels("found").time():
                try:
                    after = await keeper.decide(step)
                except Undecided as why:
                    return self._passed(sandbox, container, str(why))
                others = await keeper.keep(after, key)
                return Placing(self._own(key), others)

    async def created(self, sandbox_id: str, name: str, attempt: int, container_id: str) -> None:
        self._begun.pop((sandbox_id, name), None)
        await self._event("created", lambda known: known.created((sandbox_id, name), container_id))

    async def not_created(self, sandbox_id: str, name: str, attempt: int) -> None:
        key = (sandbox_id, name)
        if key not in self._begun:
            # The runtime reconnected meanwhile: what was known before is lost, and the CPUs are kept.
            await self._event("not created", lambda known: known.lose_sight(key))
            return
        before = self._begun.pop(key)
        await self._event("not created", lambda known: known.not_created(key, before))

    async def update(self, container_id: str, resources: RuntimeResources) -> Placing:
        keeper = self.keeper
        async with keeper.lock:
            if keeper.placements is None:
                if self._record is not None:
                    self._record.update(container_id, resources)
                return Placing()
            found = keeper.placements.find(container_id)
            if found is None:
                return Placing()
            sandbox = keeper.placements.sandboxes[found.key[0]]
            old = keeper.pins.get(found.key)

            def step(placements: Placements) -> None:
                placements.update(container_id, resources)

            with telemetry.CPUS_DECISION_SECONDS.labels("update").time():
                try:
                    after = await keeper.decide(step)
                except CpuRefused as refused:
                    self._refused(sandbox, refused)
                except Undecided as undecided:
                    # It keeps its CPUs; the new request is recorded, and the next audit decides.
                    why = str(undecided)
                    _tell_passed(sandbox, found.key[1], why)
                    keeper.note(lambda placements: placements.update(container_id, resources, passed=why))
                    return Placing(
                        keeper.outgoing(msgspec.structs.replace(old, container_id="")) if old else None
                    )
                others = await keeper.keep(after, found.key)
                own = self._own(found.key)
                if own is not None and old is not None and old.mems and not own.mems:
                    own = msgspec.structs.replace(own, mems=keeper.everything.mems)
                return Placing(own, others)

    async def started(self, container_id: str) -> None:
        await self._event("started", lambda known: known.started(container_id))
        sandbox = self._sandbox_of(container_id)
        if sandbox is not None and self.keeper.machine.group(sandbox, container_id):
            self.seen.add(container_id)

    async def stopped(self, container_id: str) -> None:
        await self._event("stopped", lambda known: known.stopped(container_id))

    async def removed(self, container_id: str) -> None:
        await self._event("removed", lambda known: known.removed(container_id))

    async def sandbox_stopped(self, sandbox_id: str) -> None:
        self.last_creation.pop(sandbox_id, None)
        if placements := self.keeper.placements:
            self.seen -= {each.id for key, each in placements.containers.items() if key[0] == sandbox_id}
        await self._event("sandbox stopped", lambda known: known.end_sandbox(sandbox_id))

    async def sandbox_removed(self, sandbox_id: str) -> None:
        await self.sandbox_stopped(sandbox_id)

    def has_ended_unseen(self, sandbox: RuntimeSandbox, container_id: str) -> bool:
        """Whether a container had a control group, and has none now."""
        return container_id in self.seen and self.keeper.machine.group(sandbox, container_id) is None

    def _ended_unseen(self, sandbox: RuntimeSandbox, container: RuntimeContainer) -> list[str]:
        """Containers of a sandbox whose control group is gone: a runtime need not announce when one ends by itself.

        It matters when another container is created for the first time: the ended ones were init containers.
        """
        placements = self.keeper.placements
        if placements is None or (sandbox.id, container.name) in placements.containers:
            return []
        own = [each for key, each in placements.containers.items() if key[0] == sandbox.id]
        return [each.id for each in own if not each.has_ended and self.has_ended_unseen(sandbox, each.id)]

    def _sandbox_of(self, container_id: str) -> RuntimeSandbox | None:
        placements = self.keeper.placements
        if placements is None:
            return self._record.sandbox_of(container_id) if self._record else None
        found = placements.find(container_id)
        return placements.sandboxes[found.key[0]] if found else None

    def _own(self, key: ContainerKey) -> CpuPin | None:
        pin = self.keeper.pins.get(key)
        return None if pin is None else self.keeper.outgoing(msgspec.structs.replace(pin, container_id=""))

    async def _event(self, what: str, change: Callable[[Placements | RuntimeRecord], None]) -> None:
        async with self.keeper.lock:
            if self.keeper.placements is None and self._record is not None:
                change(self._record)
            await self.keeper.take_step(what, change)

    def _passed(self, sandbox: RuntimeSandbox, container: RuntimeContainer, why: str) -> Placing:
        """Let a container start without a decision: on the shared CPUs, or on all of them."""
        keeper = self.keeper
        _tell_passed(sandbox, container.name, why)
        if keeper.placements is None and self._record is not None:
            self._record.create(sandbox, container)
        if keeper.placements is None or not keeper.placements.active:
            return Placing()
        keeper.note(lambda placements: placements.create(sandbox, container, passed=why))
        return Placing(keeper.outgoing(CpuPin(cpus=keeper.shared)) if keeper.shared else None)

    def _refused(self, sandbox: RuntimeSandbox, refused: CpuRefused) -> NoReturn:
        telemetry.CPUS_REFUSED.inc()
        telemetry.logger().info(Event.PLACEMENT_REFUSED, pod=sandbox.name, reason=str(refused))
        raise PlacementRefused(str(refused)) from refused


def _let_through(placements: Placements, *, sandbox: RuntimeSandbox, container: RuntimeContainer) -> None:
    placements.create(sandbox, container, passed=NO_TOPOLOGY if placements.active else "")


def _tell_passed(sandbox: RuntimeSandbox, container: str, why: str) -> None:
    telemetry.CPUS_PASSED.labels(why).inc()
    telemetry.logger().warning(
        Event.PLACEMENT_PASSED,
        namespace=sandbox.namespace,
        pod=sandbox.name,
        container=container,
        reason=why,
    )


def agrees(pin: CpuPin, cpus: CpuSet, mems: tuple[int, ...]) -> bool:
    """Whether a container has the CPUs and memory nodes that it should have."""
    return pin.cpus == cpus and (not pin.mems or pin.mems == mems)
