"""What the placer does between events: writes containers that run already, and looks every minute how things are.

Containers that lose CPUs are written at once, those that gain some after a pause, in which more may come together;
what the runtime does not take is tried again, later each time. The audit compares every cpuset with the control
groups, and heals what somebody else has changed; it follows CPUs that go off and on, frees what is kept for sandboxes
that are gone, places who was let through, and moves shared containers to better pools, a few at a time.
"""

import random
from collections.abc import Awaitable
from functools import partial
from typing import TypeVar

import msgspec

from colocate import telemetry
from colocate.aio import first, in_thread
from colocate.backoff import BackOff
from colocate.cpus import ContainerKey, CpuMove, rebalance_plan
from colocate.cpus.placer.book import PlacementBook
from colocate.cpus.placer.placer import Placer, agrees
from colocate.cpus.placer.report import tell_figures
from colocate.crashpoints import reached
from colocate.errors import ColocateError, UserError
from colocate.model.container import CpuPin
from colocate.model.cpu_topology import CpuTopology
from colocate.telemetry import Event

T = TypeVar("T")

AUDIT = 60.0
"""Seconds from one audit to the next."""
_FIRST_LOOK = 1.0
"""Seconds until the machine's CPUs are looked for again, where nobody could tell them; later each time."""
PAUSE = 1.0
"""Seconds in which changes that may wait come together."""
_LONGEST_PAUSE = 60.0
_MOST_MOVES = 4
"""Containers that an audit moves to better pools."""
_SETTLED = 120.0
"""Seconds after a sandbox's last creation in which its init containers' CPUs are kept for those that follow."""


class Upkeep:
    """Runs beside a placer."""

    def __init__(self, placer: Placer) -> None:
        self._placer = placer
        self._clock = placer.clock
        self._drifted: set[ContainerKey] = set()
        """Those whose drift was healed by the last audit: found again, it is reported."""
        self._balanced: PlacementBook | None = None
        """The book in which everybody sat as well as can be."""
        self._sandboxes_seen: set[str] = set()
        """Sandboxes that had a control group of their own at the last audit."""

    async def run(self) -> None:
        """Until cancelled."""
        await first(self._write_forever(), self._audit_forever())

    async def _write_forever(self) -> None:
        seen, pause = 0, PAUSE
        refused: set[ContainerKey] = set()
        while True:
            seen = await self._placer.changed.beyond(seen)
            await first(self._clock.sleep(pause), self._until_urgent(refused))
            whole = await self._guarded("write", self.write())
            refused = set(self._placer.urgent)
            pause = PAUSE if whole else min(_LONGEST_PAUSE, pause * 2)
            if not whole:
                self._placer.changed.changed()
            await self._guarded("figures", self._tell(moves=False))

    async def _until_urgent(self, refused: set[ContainerKey]) -> None:
        """Until somebody must lose CPUs, who has not just been refused by the runtime: that cannot wait."""
        seen = self._placer.changed.count
        while not set(self._placer.urgent) - refused:
            seen = await self._placer.changed.beyond(seen)

    async def _audit_forever(self) -> None:
        blind = BackOff(_FIRST_LOOK, AUDIT / 2, random.random)
        while True:
            await self._clock.sleep(blind.pause() if self._placer.is_blind else AUDIT)
            await self.audit()

    async def _guarded(self, what: str, work: Awaitable[T]) -> T | None:
        """A fault of ours must not end the process that containers start through."""
        try:
            return await work
        except Exception as error:  # noqa: BLE001 -- whatever it is, the next turn tries again
            self._placer.failed(what, error)
            return None

    async def write(self) -> bool:
        """Write what waits; whether nothing is left that the runtime did not take."""
        placer = self._placer
        writer = placer.writer
        if writer is None or placer.book is None:
            return True
        if urgent := {key: pin for key, pin in placer.urgent.items() if key in placer.unwritten}:
            placer.urgent = {}
            failed = await self._written([placer.outgoing(pin) for pin in urgent.values()])
            placer.urgent = {
                key: pin for key, pin in urgent.items() if pin.container_id in failed
            } | placer.urgent
        pins = {key: pin for key in placer.unwritten if (pin := placer.pins.get(key)) and pin.container_id}
        placer.unwritten -= set(pins)
        restored = self._restorations(placer.book)
        if not pins and not restored:
            return True
        failed = await self._written(
            [*(placer.outgoing(self._wide(pin)) for pin in pins.values()), *restored.values()]
        )
        failed -= await self._settle_the_ended(failed)
        # One that was changed meanwhile is written again: which of the two came last nobody knows.
        placer.unwritten |= {
            key
            for key, pin in pins.items()
            if key in placer.pins and (pin.container_id in failed or placer.pins[key] != pin)
        }
        done = {key for key, pin in restored.items() if pin.container_id not in failed}
        if done:
            await placer.step("restore", lambda book: book.unpinned.difference_update(done))
        telemetry.CPUS_UNWRITTEN.set(len(placer.unwritten) + len(placer.book.unpinned))
        return not failed

    async def _settle_the_ended(self, failed: set[str]) -> set[str]:
        """Of containers that could not be written, those that have ended and nobody told."""
        placer = self._placer
        if placer.book is None or not failed:
            return set()
        found = [placed for each in failed if (placed := placer.book.find(each))]
        ended = {
            placed.id
            for placed in found
            if placer.has_ended_unseen(placer.book.sandboxes[placed.key[0]], placed.id)
        }
        for container_id in sorted(ended):
            await placer.stopped(container_id)
        return ended

    async def audit(self) -> None:
        """One look at everything. A part that fails is told, and the others are done all the same."""
        await self._guarded("machine", self._follow_machine())
        await self._guarded("sandboxes", self._end_gone_sandboxes())
        await self._guarded("settle", self._settle_all())
        await self._guarded("rebalance", self._rebalance())
        if self._placer.state.unstored:
            await self._placer.step("store", lambda _: None)
        await self._guarded("drift", self._look_for_drift())
        await self._guarded("write", self.write())
        await self._guarded("figures", self._tell(moves=True))

    async def _follow_machine(self) -> None:
        placer = self._placer
        if placer.book is None:
            await placer.look_again()
        elif await in_thread(partial(self._has_changed, placer.book)):
            await placer.reconfigure(placer.policy)

    async def _settle_all(self) -> None:
        book = self._placer.book
        if book is not None and book.active and not book.is_settled:
            await self._placer.step("settle", self._settle)

    def _has_changed(self, book: PlacementBook) -> bool:
        try:
            return not same_cpus(self._placer.machine.topology(), book.allocator.tree.topology)
        except UserError as error:
            telemetry.logger().warning(Event.PLACEMENT_DOUBTFUL, reason=str(error))
            return False

    async def _end_gone_sandboxes(self) -> None:
        """Free what is kept for sandboxes whose control group was there and is gone.

        A containerd that has restarted tells no more by NRI when a sandbox ends that it had before.
        """
        book, group = self._placer.book, self._placer.machine.group
        if book is None:
            return
        sandboxes, containers = dict(book.sandboxes), dict(book.containers)

        def look() -> tuple[set[str], set[str]]:
            there = {own for own, sandbox in sandboxes.items() if group(sandbox, own) is not None}
            running = {
                key[0]
                for key, each in containers.items()
                if key[0] not in there and each.id and group(sandboxes[key[0]], each.id) is not None
            }
            return there, running

        there, running = await in_thread(look)
        for sandbox_id in sorted(self._sandboxes_seen & set(sandboxes) - there - running):
            telemetry.logger().info(Event.PLACEMENT_SANDBOX_GONE, sandbox=sandbox_id)
            await self._placer.sandbox_stopped(sandbox_id)
        self._sandboxes_seen = there

    def _settle(self, book: PlacementBook) -> None:
        """Everybody is placed, and nothing is kept for nobody."""
        book.place_all()
        now = self._clock.monotonic()
        for pod in book.allocator.state().handed:
            if now - self._placer.last_creation.setdefault(pod, now) >= _SETTLED:
                book.allocator.hand_back(pod)

    async def _rebalance(self) -> None:
        """Move a few shared containers to better pools. To look for them takes long: it is done beside events."""
        placer = self._placer
        book = placer.book
        if book is None or not book.active or book is self._balanced:
            return
        moves = (await in_thread(partial(rebalance_plan, book.allocator)))[:_MOST_MOVES]
        if not moves:
            self._balanced = book
            return

        def move(twin: PlacementBook) -> None:
            # A plan is for the very state that it was made of.
            if placer.book is book:
                twin.allocator.apply(moves)
                for each in moves:
                    _tell_move(each)

        await placer.step("rebalance", move)

    async def _look_for_drift(self) -> None:
        placer = self._placer
        book, pins = placer.book, dict(placer.pins)
        if book is None:
            return
        wanted = {key: placer.outgoing(pin) for key, pin in pins.items() if pin.container_id}
        sandboxes = book.sandboxes

        def look() -> set[ContainerKey]:
            found = set()
            for key, pin in wanted.items():
                group = placer.machine.group(sandboxes[key[0]], pin.container_id)
                if group is not None:
                    placer.seen.add(pin.container_id)
                if group is not None and not agrees(pin, group.cpus, group.mems):
                    found.add(key)
            return found

        drifted = {
            key
            for key in await in_thread(look)
            if placer.pins.get(key) == pins[key] and key not in placer.unwritten
        }
        for key in sorted(drifted):
            stubborn = key in self._drifted
            telemetry.CPUS_DRIFT.labels("reported" if stubborn else "healed").inc()
            telemetry.logger().warning(
                Event.PLACEMENT_DRIFT,
                container=key[1],
                sandbox=key[0],
                wanted=str(wanted[key].cpus),
                again=stubborn,
            )
        self._drifted = drifted
        placer.unwritten |= drifted

    def _restorations(self, book: PlacementBook) -> dict[ContainerKey, CpuPin]:
        return {
            key: self._placer.restoration(key)
            for key in sorted(book.unpinned)
            if book.containers[key].id and not book.containers[key].has_ended
        }

    def _wide(self, pin: CpuPin) -> CpuPin:
        """Memory that is left alone may have been pinned before: it may be anywhere again."""
        if pin.mems or not self._placer.policy.settings.pin_memory:
            return pin
        return msgspec.structs.replace(pin, mems=self._placer.everything.mems)

    async def _written(self, pins: list[CpuPin]) -> set[str]:
        """The ids of those that the runtime did not take."""
        writer = self._placer.writer
        if writer is None:
            return {pin.container_id for pin in pins}
        reached("placement.write")
        try:
            failed = set(await writer.write(pins))
        except (ColocateError, OSError) as error:
            telemetry.logger().warning(Event.PLACEMENT_UNWRITTEN, reason=str(error), count=len(pins))
            return {pin.container_id for pin in pins}
        reached("placement.written")
        if failed:
            telemetry.logger().warning(
                Event.PLACEMENT_UNWRITTEN, reason="the runtime did not take them", count=len(failed)
            )
        return failed

    async def _tell(self, *, moves: bool) -> None:
        book = self._placer.book
        if book is not None and moves:
            # Which moves would help takes long to find: it is done beside events, and by the audit alone.
            await in_thread(partial(tell_figures, book, moves=True))
        elif book is not None:
            tell_figures(book, moves=False)


def same_cpus(one: CpuTopology, other: CpuTopology) -> bool:
    """Whether two readings are of the same CPUs; free memory changes all the time."""
    return (one.cpus, one.isolated) == (other.cpus, other.isolated) and [
        (node.id, node.cpus, node.memory) for node in one.nodes
    ] == [(node.id, node.cpus, node.memory) for node in other.nodes]


def _tell_move(move: CpuMove) -> None:
    telemetry.CPUS_MOVES.labels("a better pool").inc()
    telemetry.logger().info(
        Event.PLACEMENT_MOVED,
        container=move.key[1],
        before=str(move.before),
        after=str(move.after),
        why=move.why,
    )
