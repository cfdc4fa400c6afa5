"""The placer: one state, one decision per event, whichever way in tells of it.

Every event is a step of the book (`book`), taken in time and stored (`book_keeper`) before the answer goes out. A
step that fails or takes too long lets the request pass with the CPUs that all share, and the audit mends it: a
container starts as it would without us. A strict wish that cannot be had is an answer, not a failure.

While nobody can tell the machine's CPUs there is no book: requests pass, what they tell is kept in a record, and as
soon as the CPUs can be told the stored state is brought in line with it.

Writes to containers that run already are made by `upkeep`, between events.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NoReturn

import msgspec

from colocate import telemetry
from colocate.clock import Clock, SystemClock
from colocate.cpus import ContainerKey, CpuRefused
from colocate.cpus.placer.book import PlacedContainer, PlacementBook, PlacementState
from colocate.cpus.placer.book_keeper import NO_TOPOLOGY, BookKeeper, Undecided
from colocate.cpus.placer.machine import PlacementMachine
from colocate.cpus.placer.policy import PlacementPolicy
from colocate.cpus.placer.reconciliation import FoundGroup, reconciled
from colocate.cpus.placer.runtime_record import RuntimeRecord
from colocate.cpus.placer.store import PlacementStore
from colocate.host.device_nodes import device_nodes
from colocate.model.container import CpuPin, RuntimeContainer, RuntimeResources, RuntimeSandbox
from colocate.model.cpuset import CpuSet
from colocate.runtime.events import PinWriter, PlacementRefused, Placing
from colocate.telemetry import Event

_TOO_EARLY = "too early"


class Placer(BookKeeper):
    """Implements `ContainerEvents`."""

    def __init__(
        self,
        policy: PlacementPolicy,
        store: PlacementStore,
        machine: PlacementMachine | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(policy, store, machine or PlacementMachine(), clock or SystemClock())
        self.writer: PinWriter | None = None
        self.last_creation: dict[str, float] = {}
        """By sandbox, when a container of it was created last."""
        self.seen: set[str] = set()
        """Ids of containers that were seen to have a control group: without one they have ended."""
        self._record: RuntimeRecord | None = None
        """What the runtime has, as long as there is no book; None where it has not told yet."""
        self._begun: dict[ContainerKey, PlacedContainer | None] = {}
        """Containers that a runtime is making, and what was known of each before."""

    async def look_again(self) -> None:
        """Begin to place, where nobody could tell the machine's CPUs and they can be told by now."""
        async with self._turn:
            if not self.is_blind:
                return
            record = self._record
            self._go_on()
            if self.book is None or record is None:
                return
            self._record = None
            for sandbox, container in record.running():
                if self.has_ended_unseen(sandbox, container.id):
                    record.stopped(container.id)
            wrong = await self._synchronized(*record.found())
            for sandbox, container in record.begun():
                self._begun[sandbox.id, container.name] = None
                self._noted(partial(_let_through, sandbox=sandbox, container=container))
            self.unwritten |= {key for pin in wrong if (key := self.book.find_key(pin))}
            self.changed.changed()

    async def synchronize(
        self,
        sandboxes: Sequence[RuntimeSandbox],
        containers: Sequence[RuntimeContainer],
        writer: PinWriter,
    ) -> Sequence[CpuPin]:
        async with self._turn:
            if self.book is None:
                self._record = RuntimeRecord(sandboxes, containers)
            try:
                return await self._synchronized(sandboxes, containers)
            finally:
                self.writer = writer
                self.changed.changed()

    async def _synchronized(
        self, sandboxes: Sequence[RuntimeSandbox], containers: Sequence[RuntimeContainer]
    ) -> list[CpuPin]:
        self._begun.clear()
        by_id = {each.id: each for each in sandboxes}
        running = [
            (by_id[each.sandbox_id], each)
            for each in containers
            if each.sandbox_id in by_id and not each.has_ended
        ]
        groups = await asyncio.to_thread(self.machine.groups, running)
        beside = {each.id: nodes for each in containers if (nodes := device_nodes(each.devices))}
        self.seen = set(groups)
        self.last_creation = {own: at for own, at in self.last_creation.items() if own in by_id}
        if self.book is None:
            self._go_on()
        if self.book is None:
            return []
        self._record = None
        try:
            book = self._reconciled(self.book, sandboxes, containers, groups, beside)
        except Exception as error:  # noqa: BLE001 -- whatever the policy does, the runtime goes on
            self.failed("synchronize", error)
            return []
        adopted = [key[1] for key in book.containers if key not in self.book.containers]
        if adopted:
            telemetry.logger().info(Event.PLACEMENT_ADOPTED, containers=adopted[:100], count=len(adopted))
        await self.state.save(book.state())
        self._count(book)
        self.unwritten, self.urgent = set(), {}
        wrong = []
        for pin in map(self.outgoing, self.pins.values()):
            found = groups.get(pin.container_id)
            if pin.container_id and (found is None or not agrees(pin, found.cpus, found.mems)):
                wrong.append(pin)
        # Those that are to be pinned no more are written by `upkeep`, which knows when that is done.
        return wrong

    def _reconciled(
        self,
        known: PlacementBook,
        sandboxes: Sequence[RuntimeSandbox],
        containers: Sequence[RuntimeContainer],
        groups: Mapping[str, FoundGroup],
        beside: Mapping[str, tuple[int, ...]],
    ) -> PlacementBook:
        """The book with what runs; one that cannot be brought in line with it gives way to one made of what runs."""
        try:
            return reconciled(known, sandboxes, containers, groups, beside)
        except Exception as error:
            fresh = self._taken_up(PlacementState(off=known.off))
            if fresh is None:
                raise
            book = reconciled(fresh, sandboxes, containers, groups, beside)
            if not book.active:
                # Nobody knows any more who is still to have all CPUs again.
                book.unpinned = set(book.containers)
            self.failed("synchronize", error)
            self.state.set_aside("it cannot be brought in line with what runs")
            return book

    async def detached(self, writer: PinWriter) -> None:
        if self.writer is writer:
            self.writer = None

    async def create(self, sandbox: RuntimeSandbox, container: RuntimeContainer) -> Placing:
        async with self._turn:
            key = (sandbox.id, container.name)
            self.last_creation[sandbox.id] = self.clock.monotonic()
            beside = await self.machine.beside(sandbox, container)
            before = self.book.containers.get(key) if self.book else None

            ended = self._ended_unseen(sandbox, container)

            def step(book: PlacementBook) -> None:
                for container_id in ended:
                    book.stopped(container_id)
                book.create(sandbox, container, beside)

            with telemetry.CPUS_DECISION_SECONDS.labels("create").time():
                try:
                    book = await self._decided(step)
                except CpuRefused as refused:
                    self._refused(sandbox, refused)
                except Undecided as why:
                    self._begun[key] = before
                    return self._passed(sandbox, container, str(why))
                self._begun[key] = before
                others = await self._keep(book, key)
                return Placing(self._own(key), others)

    async def found(self, sandbox: RuntimeSandbox, container: RuntimeContainer) -> Placing:
        async with self._turn:
            key = (sandbox.id, container.name)
            beside = await self.machine.beside(sandbox, container)

            def step(book: PlacementBook) -> None:
                book.create(sandbox, container, beside, passed=_TOO_EARLY if book.active else "")
                book.place(key)

            with telemetry.CPUS_DECISION_SECONDS.labels("found").time():
                try:
                    book = await self._decided(step)
                except Undecided as why:
                    return self._passed(sandbox, container, str(why))
                others = await self._keep(book, key)
                return Placing(self._own(key), others)

    async def created(self, sandbox_id: str, name: str, attempt: int, container_id: str) -> None:
        self._begun.pop((sandbox_id, name), None)
        await self._event("created", lambda book: book.created((sandbox_id, name), container_id))

    async def not_created(self, sandbox_id: str, name: str, attempt: int) -> None:
        key = (sandbox_id, name)
        if key not in self._begun:
            # The runtime was away meanwhile: what it had before is for its next start all the same.
            await self._event("not created", lambda book: book.lose_sight(key))
            return
        before = self._begun.pop(key)
        await self._event("not created", lambda book: book.not_created(key, before))

    async def update(self, container_id: str, resources: RuntimeResources) -> Placing:
        async with self._turn:
            if self.book is None and self._record is not None:
                self._record.update(container_id, resources)
            found = self.book.find(container_id) if self.book else None
            if found is None:
                return Placing()
            old = self.pins.get(found.key)

            def step(book: PlacementBook) -> None:
                book.update(container_id, resources)

            with telemetry.CPUS_DECISION_SECONDS.labels("update").time():
                try:
                    book = await self._decided(step)
                except CpuRefused as refused:
                    self._refused(self.book.sandboxes[found.key[0]] if self.book else None, refused)
                except Undecided as why:
                    self._passed_update(found, resources, str(why))
                    return Placing(
                        self.outgoing(msgspec.structs.replace(old, container_id="")) if old else None
                    )
                others = await self._keep(book, found.key)
                own = self._own(found.key)
                if own is not None and old is not None and old.mems and not own.mems:
                    own = msgspec.structs.replace(own, mems=self.everything.mems)
                return Placing(own, others)

    async def started(self, container_id: str) -> None:
        await self._event("started", lambda book: book.started(container_id))
        found = self.book.find(container_id) if self.book else None
        sandbox = self.book.sandboxes[found.key[0]] if self.book and found else None
        if self.book is None and self._record is not None:
            sandbox = self._record.sandbox_of(container_id)
        if sandbox is not None and self.machine.group(sandbox, container_id):
            self.seen.add(container_id)

    async def stopped(self, container_id: str) -> None:
        await self._event("stopped", lambda book: book.stopped(container_id))

    async def removed(self, container_id: str) -> None:
        await self._event("removed", lambda book: book.removed(container_id))

    async def sandbox_stopped(self, sandbox_id: str) -> None:
        self.last_creation.pop(sandbox_id, None)
        if self.book is not None:
            self.seen -= {each.id for key, each in self.book.containers.items() if key[0] == sandbox_id}
        await self._event("sandbox stopped", lambda book: book.end_sandbox(sandbox_id))

    async def sandbox_removed(self, sandbox_id: str) -> None:
        await self.sandbox_stopped(sandbox_id)

    def _ended_unseen(self, sandbox: RuntimeSandbox, container: RuntimeContainer) -> list[str]:
        """Containers of a sandbox whose control group is gone: not every way in tells when one ends by itself.

        It matters when another is created for the first time: those that have ended were init containers.
        """
        if self.book is None or (sandbox.id, container.name) in self.book.containers:
            return []
        own = [each for key, each in self.book.containers.items() if key[0] == sandbox.id]
        return [each.id for each in own if not each.has_ended and self.has_ended_unseen(sandbox, each.id)]

    def has_ended_unseen(self, sandbox: RuntimeSandbox, container_id: str) -> bool:
        """Whether a container had a control group, and has none now."""
        return container_id in self.seen and self.machine.group(sandbox, container_id) is None

    def _own(self, key: ContainerKey) -> CpuPin | None:
        pin = self.pins.get(key)
        return None if pin is None else self.outgoing(msgspec.structs.replace(pin, container_id=""))

    async def _event(self, what: str, change: Callable[[PlacementBook | RuntimeRecord], None]) -> None:
        async with self._turn:
            if self.book is None and self._record is not None:
                change(self._record)
            await self._stepped(what, change)

    def _passed(self, sandbox: RuntimeSandbox, container: RuntimeContainer, why: str) -> Placing:
        _tell_passed(sandbox, container.name, why)
        if self.book is None and self._record is not None:
            self._record.create(sandbox, container)
        if self.book is None or not self.book.active:
            return Placing()
        self._noted(lambda book: book.create(sandbox, container, passed=why))
        return Placing(self.outgoing(CpuPin(cpus=self.shared)) if self.shared else None)

    def _passed_update(self, found: PlacedContainer, resources: RuntimeResources, why: str) -> None:
        """It keeps what it has; what it asks for now is noted, and the audit decides."""
        if self.book is not None:
            _tell_passed(self.book.sandboxes[found.key[0]], found.key[1], why)
            self._noted(lambda book: book.update(found.id, resources, passed=why))

    def _refused(self, sandbox: RuntimeSandbox | None, refused: CpuRefused) -> NoReturn:
        telemetry.CPUS_REFUSED.inc()
        telemetry.logger().info(
            Event.PLACEMENT_REFUSED, pod=sandbox.name if sandbox else "", reason=str(refused)
        )
        raise PlacementRefused(str(refused)) from refused


def _let_through(book: PlacementBook, *, sandbox: RuntimeSandbox, container: RuntimeContainer) -> None:
    book.create(sandbox, container, passed=NO_TOPOLOGY if book.active else "")


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
    """Whether a container has what it should."""
    return pin.cpus == cpus and (not pin.mems or pin.mems == mems)
