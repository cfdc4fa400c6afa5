"""The placer: one state, one decision per event, whichever way in tells of it.

Every event is a step of the book (`book`), taken on a copy in a thread with a deadline. The step is stored before
anything follows from it; then it counts, and the answer goes out. A step that fails or takes too long lets the
request pass with the CPUs that all share, and the audit mends it: a container starts as it would without us. A
strict wish that cannot be had is an answer, not a failure.

While nobody can tell the machine's CPUs there is no book: requests pass, what they tell is kept in a record, and as
soon as the CPUs can be told the stored state is brought in line with it.

Writes to containers that run already are made by `upkeep`, between events.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NoReturn, TypeVar

import msgspec

from colocate import telemetry
from colocate.aio import Watched
from colocate.apps.placement.book import (
    PinChanges,
    PlacedContainer,
    PlacementBook,
    PlacementState,
    pin_changes,
)
from colocate.apps.placement.machine import PlacementMachine
from colocate.apps.placement.policy import PlacementPolicy, fitted
from colocate.apps.placement.reconciliation import FoundGroup, reconciled
from colocate.apps.placement.runtime_record import RuntimeRecord
from colocate.apps.placement.state_keeper import StateKeeper
from colocate.apps.placement.store import PlacementStore
from colocate.clock import Clock, SystemClock
from colocate.cpus import ContainerKey, CpuRefused
from colocate.errors import UserError
from colocate.host.device_nodes import device_nodes
from colocate.model.container import (
    CpuPin,
    RuntimeContainer,
    RuntimeResources,
    RuntimeSandbox,
)
from colocate.model.cpuset import EMPTY, CpuSet
from colocate.runtime.events import PinWriter, PlacementRefused, Placing
from colocate.telemetry import Event

DEADLINE = 0.1
"""Seconds that a decision may take."""

_TOO_EARLY = "too early"
_NO_TOPOLOGY = "no topology"

T = TypeVar("T")


class _Undecided(Exception):
    """No decision was made; the reason is a word for metrics."""


class Placer:
    """Implements `ContainerEvents`."""

    def __init__(
        self,
        policy: PlacementPolicy,
        store: PlacementStore,
        machine: PlacementMachine | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.policy = policy
        self.machine = machine or PlacementMachine()
        self.clock = clock or SystemClock()
        self.book: PlacementBook | None = None
        """None while nobody can tell the machine's CPUs: then every request passes."""
        self.pins: dict[ContainerKey, CpuPin] = {}
        """What every container should have; follows from the book."""
        self.shared: CpuSet = EMPTY
        """The CPUs that all share, as last known."""
        self.everything = CpuPin(cpus=EMPTY)
        self.writer: PinWriter | None = None
        self.unwritten: set[ContainerKey] = set()
        """Containers that run and are to be written."""
        self.urgent: dict[ContainerKey, CpuPin] = {}
        """Of these, what must be written first: others are to have what they lose."""
        self.changed = Watched()
        """Counts what `upkeep` should look at."""
        self.doubts: tuple[str, ...] = ()
        """What people should know of the machine and the configuration."""
        self.last_creation: dict[str, float] = {}
        """By sandbox, when a container of it was created last."""
        self.state = StateKeeper(store)
        self._stored = PlacementState()
        """What is to be taken up, as long as there is no book."""
        self._record: RuntimeRecord | None = None
        """What the runtime has, as long as there is no book; None where it has not told yet."""
        self._turn = asyncio.Lock()
        self.seen: set[str] = set()
        """Ids of containers that were seen to have a control group: without one they have ended."""
        self._begun: dict[ContainerKey, PlacedContainer | None] = {}
        """Containers that a runtime is making, and what was known of each before."""

    def begin(self) -> None:
        """Take the state up; UserError where another placer has it."""
        self._stored = self.state.begin()
        self._go_on()

    def close(self) -> None:
        self.state.close()

    @property
    def is_blind(self) -> bool:
        """Whether nobody can be placed, because there is no book."""
        return self.book is None

    async def look_again(self) -> None:
        """Begin to place, where nobody could tell the machine's CPUs and they can be told by now."""
        async with self._turn:
            if not self.is_blind:
                return
            record = self._record
            self._go_on()
            if self.book is None or record is None:
                return
            for sandbox, container in record.running():
                if self.has_ended_unseen(sandbox, container.id):
                    record.stopped(container.id)
            wrong = await self._synchronized(*record.found())
            for sandbox, container in record.begun():
                self._begun[sandbox.id, container.name] = None
                self._noted(partial(_let_through, sandbox=sandbox, container=container))
            self.unwritten |= {key for pin in wrong if (key := self.book.find_key(pin))}
            self.changed.changed()

    def _go_on(self) -> None:
        """Take up what is stored, on this machine as it is now, under the policy as it is now. Nothing is refused."""
        doubts = self.doubts
        if not self._has_taken_up(self._stored) and self._stored != PlacementState(off=self._stored.off):
            self.state.set_aside("nobody can go on with it")
            self._stored = PlacementState(off=self._stored.off)
            self._has_taken_up(self._stored)
        if self.book is not None:
            self._stored, self._record = PlacementState(), None
            if doubts:
                telemetry.logger().info(Event.PLACEMENT_BEGUN_LATE, until_now=doubts[0])

    def _has_taken_up(self, state: PlacementState) -> bool:
        try:
            book = self._taken_up(state)
        except Exception as error:  # noqa: BLE001 -- whatever the policy does, containers start
            self.failed("take up", error)
            return False
        if book is not None:
            self._count(book)
        return True

    def _taken_up(self, state: PlacementState) -> PlacementBook | None:
        """None where nobody can tell the machine's CPUs."""
        try:
            topology = self.machine.topology()
            self.everything = self.machine.everything()
        except UserError as error:
            if self.doubts != (str(error),):
                telemetry.logger().error(
                    Event.PLACEMENT_DOUBTFUL, reason=str(error), effect="every request passes"
                )
            self.doubts = (str(error),)
            return None
        settings, doubts = fitted(self.policy.settings, topology)
        self.doubts = (*topology.doubts, *doubts)
        for doubt in self.doubts:
            telemetry.logger().warning(Event.PLACEMENT_DOUBTFUL, reason=doubt)
        book, moves = PlacementBook.restored(
            topology, settings, state, active=self.policy.active, defaults=self.policy.defaults
        )
        for move in moves:
            telemetry.CPUS_MOVES.labels("no longer fits").inc()
            telemetry.logger().warning(
                Event.PLACEMENT_MOVED,
                container=move.key[1],
                before=str(move.before),
                after=str(move.after),
                why=move.why,
            )
        return book

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
                except _Undecided as why:
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
                except _Undecided as why:
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
                except _Undecided as why:
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
        if self._record is not None:
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

    async def step(self, what: str, change: Callable[[PlacementBook], T]) -> T | None:
        """A step that is nobody's event: the audit's, or an operator's. None where it failed."""
        async with self._turn:
            return await self._stepped(what, change)

    async def reconfigure(self, policy: PlacementPolicy) -> None:
        """Another configuration, or the same on a machine that has changed: everybody keeps what still fits."""
        async with self._turn:
            before, old = self.pins, self.policy
            self.policy = policy
            if self.book is None:
                return
            try:
                book = self._taken_up(self.book.state())
                if book is None:
                    return
                book.place_all()
            except Exception as error:  # noqa: BLE001 -- whatever the policy does, the runtime goes on
                self.policy = old
                self.failed("reconfigure", error)
                return
            self._count(book)
            await self.state.save(book.state())
            self._write_next(pin_changes(before, self.pins, ()))

    def outgoing(self, pin: CpuPin) -> CpuPin:
        """A pin as the runtime is told it."""
        return self.machine.clipped(pin, self.everything)

    def restoration(self, key: ContainerKey) -> CpuPin:
        """What a container has that is pinned no more: what the kubelet said, else everything."""
        assert self.book is not None
        found = self.book.containers[key]
        try:
            cpus = CpuSet.parse(found.resources.cpuset_cpus) & self.everything.cpus
            mems = tuple(CpuSet.parse(found.resources.cpuset_mems))
        except ValueError:
            cpus, mems = EMPTY, ()
        return CpuPin(
            container_id=found.id, cpus=cpus or self.everything.cpus, mems=mems or self.everything.mems
        )

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

    async def _stepped(self, what: str, change: Callable[[PlacementBook], T]) -> T | None:
        if self.book is None:
            return None
        book = self.book.copy()
        try:
            result = change(book)
        except Exception as error:  # noqa: BLE001 -- whatever the policy does, the runtime goes on
            self.failed(what, error)
            return None
        before = self.pins
        await self.state.save(book.state())
        self._count(book)
        self._write_next(pin_changes(before, self.pins, ()))
        return result

    async def _decided(self, step: Callable[[PlacementBook], None]) -> PlacementBook:
        """The book after the step; CpuRefused, or _Undecided where it failed or took too long."""
        if self.book is None:
            raise _Undecided(_NO_TOPOLOGY)
        book = self.book.copy()
        thought = asyncio.ensure_future(asyncio.to_thread(step, book))
        timer = asyncio.ensure_future(self.clock.sleep(DEADLINE))
        await asyncio.wait({thought, timer}, return_when=asyncio.FIRST_COMPLETED)
        timer.cancel()
        if not thought.done():
            # It goes on in its thread, and what it finds is thrown away.
            thought.add_done_callback(lambda late: late.cancelled() or late.exception())
            raise _Undecided("deadline")
        try:
            thought.result()
        except CpuRefused:
            raise
        except Exception as error:
            self.failed("decide", error)
            raise _Undecided("failure") from error
        return book

    async def _keep(self, book: PlacementBook, own: ContainerKey) -> tuple[CpuPin, ...]:
        """Store a step, let it count, and return who must be changed first."""
        before = self.pins
        await self.state.save(book.state())
        self._count(book)
        changes = pin_changes(before, self.pins, (own,))
        self._write_next(PinChanges((), changes.later))
        return tuple(self.outgoing(pin) for pin in changes.urgent)

    def _write_next(self, changes: PinChanges) -> None:
        """Nobody waits for an answer with these: `upkeep` writes them."""
        assert self.book is not None
        for pin in changes.urgent:
            if key := self.book.find_key(pin):
                self.urgent[key] = pin
                self.unwritten.add(key)
        self.unwritten = {key for key in self.unwritten | set(changes.later) if key in self.pins}
        self.urgent = {key: pin for key, pin in self.urgent.items() if key in self.unwritten}
        self.changed.changed()

    def _count(self, book: PlacementBook) -> None:
        self.book = book
        self.pins = book.pins()
        self.shared = book.allocator.occupancy().shared

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

    def _noted(self, change: Callable[[PlacementBook], object]) -> None:
        """A step without a decision, of which the audit makes one."""
        assert self.book is not None
        try:
            book = self.book.copy()
            change(book)
        except Exception as error:  # noqa: BLE001 -- whatever the policy does, the container starts
            self.failed("pass", error)
        else:
            self._count(book)
            self.changed.changed()

    def _refused(self, sandbox: RuntimeSandbox | None, refused: CpuRefused) -> NoReturn:
        telemetry.CPUS_REFUSED.inc()
        telemetry.logger().info(
            Event.PLACEMENT_REFUSED, pod=sandbox.name if sandbox else "", reason=str(refused)
        )
        raise PlacementRefused(str(refused)) from refused

    def failed(self, what: str, error: BaseException) -> None:
        """Tell of a fault of our own: nothing else may come of it."""
        telemetry.logger().error(Event.PLACEMENT_FAILED, what=what, exc_info=error)


def _let_through(book: PlacementBook, *, sandbox: RuntimeSandbox, container: RuntimeContainer) -> None:
    book.create(sandbox, container, passed=_NO_TOPOLOGY if book.active else "")


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
