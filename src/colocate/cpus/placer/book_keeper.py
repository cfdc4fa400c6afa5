"""Keeps the book as it stands: taken up from a stored state, stepped, stored, and what of it is still to be written.

A step is taken on a copy. It is stored before anything follows from it; then it counts. A decision is taken in a
thread with a deadline. What fails is told, and the book stays as it was: whatever the policy does, containers start.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from colocate import telemetry
from colocate.aio import Watched
from colocate.clock import Clock
from colocate.cpus import ContainerKey, CpuRefused, strict_on_several
from colocate.cpus.placer.book import PinChanges, PlacementBook, PlacementState, pin_changes
from colocate.cpus.placer.machine import PlacementMachine
from colocate.cpus.placer.policy import PlacementPolicy, fitted
from colocate.cpus.placer.state_keeper import StateKeeper
from colocate.cpus.placer.store import PlacementStore
from colocate.errors import UserError
from colocate.model.container import CpuPin
from colocate.model.cpuset import EMPTY, CpuSet
from colocate.telemetry import Event

DEADLINE = 0.1
"""Seconds that a decision may take."""
NO_TOPOLOGY = "no topology"

T = TypeVar("T")


class Undecided(Exception):
    """No decision was made; the reason is a word for metrics."""


class BookKeeper:
    """One book, and one step at a time."""

    def __init__(
        self, policy: PlacementPolicy, store: PlacementStore, machine: PlacementMachine, clock: Clock
    ) -> None:
        self.policy = policy
        self.machine = machine
        self.clock = clock
        self.book: PlacementBook | None = None
        """None while nobody can tell the machine's CPUs: then every request passes."""
        self.pins: dict[ContainerKey, CpuPin] = {}
        """What every container should have; follows from the book."""
        self.shared: CpuSet = EMPTY
        """The CPUs that all share, as last known."""
        self.everything = CpuPin(cpus=EMPTY)
        self.unwritten: set[ContainerKey] = set()
        """Containers that run and are to be written."""
        self.urgent: dict[ContainerKey, CpuPin] = {}
        """Of these, what must be written first: others are to have what they lose."""
        self.changed = Watched()
        """Counts what `upkeep` should look at."""
        self.strict_on_several: set[ContainerKey] = set()
        """Containers that wished for one CCX or no start, and run on several."""
        self.doubts: tuple[str, ...] = ()
        """What people should know of the machine and the configuration."""
        self.state = StateKeeper(store)
        self._stored = PlacementState()
        """What is to be taken up, as long as there is no book."""
        self._turn = asyncio.Lock()

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

    def _go_on(self) -> None:
        """Take up what is stored, on this machine as it is now, under the policy as it is now. Nothing is refused."""
        doubts = self.doubts
        if not self._has_taken_up(self._stored) and self._stored != PlacementState(off=self._stored.off):
            self.state.set_aside("nobody can go on with it")
            self._stored = PlacementState(off=self._stored.off)
            self._has_taken_up(self._stored)
        if self.book is not None:
            self._stored = PlacementState()
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
        """The book after the step; CpuRefused, or Undecided where it failed or took too long."""
        if self.book is None:
            raise Undecided(NO_TOPOLOGY)
        book = self.book.copy()
        thought = asyncio.ensure_future(asyncio.to_thread(step, book))
        timer = asyncio.ensure_future(self.clock.sleep(DEADLINE))
        await asyncio.wait({thought, timer}, return_when=asyncio.FIRST_COMPLETED)
        timer.cancel()
        if not thought.done():
            # It goes on in its thread, and what it finds is thrown away.
            thought.add_done_callback(lambda late: late.cancelled() or late.exception())
            raise Undecided("deadline")
        try:
            thought.result()
        except CpuRefused:
            raise
        except Exception as error:
            self.failed("decide", error)
            raise Undecided("failure") from error
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
        self._tell_strict(book)
        self.shared = book.allocator.occupancy().shared

    def _tell_strict(self, book: PlacementBook) -> None:
        """Name containers that were to have one CCX or no start, and run on several."""
        several = set(strict_on_several(book.allocator)) & book.containers.keys()
        for key in sorted(several - self.strict_on_several):
            sandbox = book.sandboxes[key[0]]
            telemetry.logger().warning(
                Event.PLACEMENT_STRICT_UNMET,
                namespace=sandbox.namespace,
                pod=sandbox.name,
                container=key[1],
                cpus=str(book.allocator.cpusets.get(key, EMPTY)),
            )
        self.strict_on_several = several
        telemetry.CPUS_STRICT_UNMET.set(len(several))

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

    def failed(self, what: str, error: BaseException) -> None:
        """Tell of a fault of our own: nothing else may come of it."""
        telemetry.logger().error(Event.PLACEMENT_FAILED, what=what, exc_info=error)
