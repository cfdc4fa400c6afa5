"""Keeps the placements of a node: restores them, takes steps, stores them, and knows what is still to be written.

A step changes a copy. The copy is stored before anything follows from it, and then replaces the placements. A
decision runs in a thread with a deadline. If a step fails, the failure is logged and the placements stay as they
were: containers start even if placement fails.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from colocate import telemetry
from colocate.aio import Watched
from colocate.clock import Clock
from colocate.cpus import ContainerKey, CpuRefused, strict_on_several
from colocate.cpus.placer.machine import PlacementMachine, fitted
from colocate.cpus.placer.placements import PinChanges, Placements, PlacementState, pin_changes
from colocate.cpus.placer.section import CpusSection
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


class PlacementKeeper:
    """The placements, changed one step at a time. Steps with a decision are taken by `Placer`, which holds `lock`."""

    def __init__(
        self, section: CpusSection, store: PlacementStore, machine: PlacementMachine, clock: Clock
    ) -> None:
        self.section = section
        self.store = store
        self.machine = machine
        self.clock = clock
        self.placements: Placements | None = None
        """None while the CPU topology cannot be read: then every request passes."""
        self.pins: dict[ContainerKey, CpuPin] = {}
        """The CPUs that each container should have, by `placements`."""
        self.shared: CpuSet = EMPTY
        """The CPUs that all containers share."""
        self.everything = CpuPin(cpus=EMPTY)
        """All CPUs and memory nodes of the machine."""
        self.unwritten: set[ContainerKey] = set()
        """Running containers whose cpuset is still to be written."""
        self.urgent: dict[ContainerKey, CpuPin] = {}
        """Of `unwritten`, those that lose CPUs which other containers are about to get: they are written first."""
        self.changed = Watched()
        """Counts changes that `upkeep` has to look at."""
        self.strict_on_several: set[ContainerKey] = set()
        """Containers that wished for strict placement on one CCX and run on several."""
        self.doubts: tuple[str, ...] = ()
        """Problems of the machine and the configuration, for operators."""
        self.lock = asyncio.Lock()
        """Held during each step."""
        self._stored = PlacementState()
        """The stored state, until it is restored."""

    def begin(self) -> None:
        """Read the stored state and restore it; UserError if another placer has the store."""
        self._stored = self.store.begin()
        self.restore()

    def close(self) -> None:
        self.store.close()

    @property
    def is_blind(self) -> bool:
        """Whether the CPU topology is unreadable, so that there are no placements."""
        return self.placements is None

    async def step(self, what: str, change: Callable[[Placements], T]) -> T | None:
        """A step of the audit or an operator. None if it failed."""
        async with self.lock:
            return await self.take_step(what, change)

    async def take_step(self, what: str, change: Callable[[Placements], T]) -> T | None:
        """Change a copy, store it and use it, with `lock` held. None if that failed."""
        if self.placements is None:
            return None
        after = self.placements.copy()
        try:
            result = change(after)
        except Exception as error:  # noqa: BLE001 -- the runtime must go on whatever fails here
            self.failed(what, error)
            return None
        self._write_next(await self._stored_changes(after))
        return result

    async def decide(self, change: Callable[[Placements], None]) -> Placements:
        """A changed copy; CpuRefused, or Undecided if the change failed or took too long."""
        if self.placements is None:
            raise Undecided(NO_TOPOLOGY)
        after = self.placements.copy()
        thought = asyncio.ensure_future(asyncio.to_thread(change, after))
        timer = asyncio.ensure_future(self.clock.sleep(DEADLINE))
        await asyncio.wait({thought, timer}, return_when=asyncio.FIRST_COMPLETED)
        timer.cancel()
        if not thought.done():
            # The thread runs on, and its result is dropped.
            thought.add_done_callback(lambda late: late.cancelled() or late.exception())
            raise Undecided("deadline")
        try:
            thought.result()
        except CpuRefused:
            raise
        except Exception as error:
            self.failed("decide", error)
            raise Undecided("failure") from error
        return after

    async def keep(self, after: Placements, own: ContainerKey) -> tuple[CpuPin, ...]:
        """Store and use what was decided for `own`; returns the pins of other containers that must change first."""
        changes = await self._stored_changes(after, own)
        self._write_next(PinChanges((), changes.later))
        return tuple(self.outgoing(pin) for pin in changes.urgent)

    def note(self, change: Callable[[Placements], object]) -> None:
        """A step without a decision, which the next audit makes."""
        assert self.placements is not None
        try:
            after = self.placements.copy()
            change(after)
        except Exception as error:  # noqa: BLE001 -- the container must start whatever fails here
            self.failed("pass", error)
        else:
            self.use(after)
            self.changed.changed()

    def use(self, placements: Placements) -> None:
        """Replace the placements, and everything that follows from them."""
        self.placements = placements
        self.pins = placements.pins()
        self.shared = placements.allocator.occupancy().shared
        self._tell_strict(placements)

    async def reconfigure(self, section: CpusSection) -> None:
        """Apply another configuration, or the same one to a changed machine; containers keep CPUs that still fit."""
        async with self.lock:
            old, self.section = self.section, section
            if self.placements is None:
                return
            try:
                placements = self.restored(self.placements.state())
                if placements is None:
                    return
                placements.place_all()
            except Exception as error:  # noqa: BLE001 -- the runtime must go on whatever fails here
                self.section = old
                self.failed("reconfigure", error)
                return
            self._write_next(await self._stored_changes(placements))

    def restore(self) -> None:
        """Restore the stored state on this machine. A state that cannot be restored is set aside."""
        doubts = self.doubts
        if not self._has_restored(self._stored) and self._stored != PlacementState(off=self._stored.off):
            self.store.set_aside("it cannot be restored")
            self._stored = PlacementState(off=self._stored.off)
            self._has_restored(self._stored)
        if self.placements is not None:
            self._stored = PlacementState()
            if doubts:
                telemetry.logger().info(Event.PLACEMENT_BEGUN_LATE, until_now=doubts[0])

    def _has_restored(self, state: PlacementState) -> bool:
        try:
            placements = self.restored(state)
        except Exception as error:  # noqa: BLE001 -- containers must start whatever fails here
            self.failed("take up", error)
            return False
        if placements is not None:
            self.use(placements)
        return True

    def restored(self, state: PlacementState) -> Placements | None:
        """The placements of a state on this machine as it is now; None if the CPU topology cannot be read."""
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
        settings, doubts = fitted(self.section.settings(), topology)
        self.doubts = (*topology.doubts, *doubts)
        for doubt in self.doubts:
            telemetry.logger().warning(Event.PLACEMENT_DOUBTFUL, reason=doubt)
        placements, moves = Placements.restored(
            topology, settings, state, active=self.section.places, defaults=self.section.defaults
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
        return placements

    def outgoing(self, pin: CpuPin) -> CpuPin:
        """The pin to send to the runtime."""
        return self.machine.clipped(pin, self.everything)

    def restoration(self, key: ContainerKey) -> CpuPin:
        """The pin that undoes placement: the cpuset that the kubelet asked for, or everything."""
        assert self.placements is not None
        found = self.placements.containers[key]
        try:
            cpus = CpuSet.parse(found.resources.cpuset_cpus) & self.everything.cpus
            mems = tuple(CpuSet.parse(found.resources.cpuset_mems))
        except ValueError:
            cpus, mems = EMPTY, ()
        return CpuPin(
            container_id=found.id, cpus=cpus or self.everything.cpus, mems=mems or self.everything.mems
        )

    def failed(self, what: str, error: BaseException) -> None:
        """Log a bug of ours; it must have no other effect."""
        telemetry.logger().error(Event.PLACEMENT_FAILED, what=what, exc_info=error)

    async def _stored_changes(self, after: Placements, *without: ContainerKey) -> PinChanges:
        """Store the placements and use them; returns the changed pins of all containers but `without`."""
        before = self.pins
        await self.store.save(after.state())
        self.use(after)
        return pin_changes(before, self.pins, without)

    def _write_next(self, changes: PinChanges) -> None:
        """Leave these changes to `upkeep`: no request waits for them."""
        assert self.placements is not None
        for pin in changes.urgent:
            if key := self.placements.find_key(pin):
                self.urgent[key] = pin
                self.unwritten.add(key)
        self.unwritten = {key for key in self.unwritten | set(changes.later) if key in self.pins}
        self.urgent = {key: pin for key, pin in self.urgent.items() if key in self.unwritten}
        self.changed.changed()

    def _tell_strict(self, placements: Placements) -> None:
        """Log containers that wished for strict placement on one CCX and run on several."""
        several = set(strict_on_several(placements.allocator)) & placements.containers.keys()
        for key in sorted(several - self.strict_on_several):
            sandbox = placements.sandboxes[key[0]]
            telemetry.logger().warning(
                Event.PLACEMENT_STRICT_UNMET,
                namespace=sandbox.namespace,
                pod=sandbox.name,
                container=key[1],
                cpus=str(placements.allocator.cpusets.get(key, EMPTY)),
            )
        self.strict_on_several = several
        telemetry.CPUS_STRICT_UNMET.set(len(several))
