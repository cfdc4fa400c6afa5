"""The placer's work between events: writes to running containers, and an audit every minute.

Containers that lose CPUs are written at once, those that gain CPUs after a pause that collects several changes. A
write that the runtime refuses is tried again after longer and longer pauses. The audit compares every cpuset with the
control groups and repairs those that were changed from outside; it follows CPUs that go offline and online, frees the
CPUs of sandboxes that are gone, places containers that started without a decision, and moves a few shared containers
to better pools.
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
from colocate.cpus.placer.placements import Placements
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
"""First pause in seconds before an unreadable CPU topology is read again; the pauses grow."""
PAUSE = 1.0
"""Seconds in which changes that can wait are collected."""
_LONGEST_PAUSE = 60.0
_MOST_MOVES = 4
"""Containers that one audit moves to better pools, at most."""
_SETTLED = 120.0
"""Seconds after a sandbox's last creation in which the CPUs of its init containers are kept for later ones."""


class Upkeep:
    """Writes and audits for one placer."""

    def __init__(self, placer: Placer) -> None:
        self._placer = placer
        self._keeper = placer.keeper
        self._drifted: set[ContainerKey] = set()
        """Containers whose cpuset the last audit repaired: if one has drifted again, that is reported."""
        self._balanced: Placements | None = None
        """The last placements for which no move was found."""
        self._sandboxes_seen: set[str] = set()
        """Sandboxes that had a control group of their own at the last audit."""

    async def run(self) -> None:
        """Write and audit until cancelled."""
        await first(self._write_forever(), self._audit_forever())

    async def _write_forever(self) -> None:
        seen, pause = 0, PAUSE
        refused: set[ContainerKey] = set()
        while True:
            seen = await self._keeper.changed.beyond(seen)
            await first(self._keeper.clock.sleep(pause), self._until_urgent(refused))
            complete = await self._guarded("write", self.write())
            refused = set(self._keeper.urgent)
            pause = PAUSE if complete else min(_LONGEST_PAUSE, pause * 2)
            if not complete:
                self._keeper.changed.changed()
            await self._guarded("figures", self._tell(moves=False))

    async def _until_urgent(self, refused: set[ContainerKey]) -> None:
        """Return once a container must lose CPUs, other than those that the runtime has just refused to change."""
        seen = self._keeper.changed.count
        while not set(self._keeper.urgent) - refused:
            seen = await self._keeper.changed.beyond(seen)

    async def _audit_forever(self) -> None:
        blind = BackOff(_FIRST_LOOK, AUDIT / 2, random.random)
        while True:
            await self._keeper.clock.sleep(blind.pause() if self._keeper.is_blind else AUDIT)
            await self.audit()

    async def _guarded(self, what: str, work: Awaitable[T]) -> T | None:
        """Log a bug of ours: it must not end the process that containers start through."""
        try:
            return await work
        except Exception as error:  # noqa: BLE001 -- the next round tries again whatever failed
            self._keeper.failed(what, error)
            return None

    async def write(self) -> bool:
        """Write what waits; returns whether the runtime took everything."""
        keeper = self._keeper
        if self._placer.writer is None or keeper.placements is None:
            return True
        if urgent := {key: pin for key, pin in keeper.urgent.items() if key in keeper.unwritten}:
            keeper.urgent = {}
            failed = await self._written([keeper.outgoing(pin) for pin in urgent.values()])
            keeper.urgent = {
                key: pin for key, pin in urgent.items() if pin.container_id in failed
            } | keeper.urgent
        pins = {key: pin for key in keeper.unwritten if (pin := keeper.pins.get(key)) and pin.container_id}
        keeper.unwritten -= set(pins)
        restored = self._restorations(keeper.placements)
        if not pins and not restored:
            return True
        failed = await self._written(
            [*(keeper.outgoing(self._wide(pin)) for pin in pins.values()), *restored.values()]
        )
        failed -= await self._settle_the_ended(failed)
        # A container that was changed meanwhile is written again: the order of the two writes is unknown.
        keeper.unwritten |= {
            key
            for key, pin in pins.items()
            if key in keeper.pins and (pin.container_id in failed or keeper.pins[key] != pin)
        }
        done = {key for key, pin in restored.items() if pin.container_id not in failed}
        if done:
            await keeper.step("restore", lambda placements: placements.unpinned.difference_update(done))
        telemetry.CPUS_UNWRITTEN.set(len(keeper.unwritten) + len(keeper.placements.unpinned))
        return not failed

    async def _settle_the_ended(self, failed: set[str]) -> set[str]:
        """Of containers that could not be written, those that have ended without an event."""
        placer, keeper = self._placer, self._keeper
        if keeper.placements is None or not failed:
            return set()
        found = [placed for each in failed if (placed := keeper.placements.find(each))]
        ended = {
            placed.id
            for placed in found
            if placer.has_ended_unseen(keeper.placements.sandboxes[placed.key[0]], placed.id)
        }
        for container_id in sorted(ended):
            await placer.stopped(container_id)
        return ended

    async def audit(self) -> None:
        """One audit. A part that fails is logged, and the others still run."""
        await self._guarded("machine", self._follow_machine())
        await self._guarded("sandboxes", self._end_gone_sandboxes())
        await self._guarded("settle", self._settle_all())
        await self._guarded("rebalance", self._rebalance())
        if self._keeper.store.unstored:
            await self._keeper.step("store", lambda _: None)
        await self._guarded("drift", self._look_for_drift())
        await self._guarded("write", self.write())
        await self._guarded("figures", self._tell(moves=True))

    async def _follow_machine(self) -> None:
        keeper = self._keeper
        if keeper.placements is None:
            await self._placer.look_again()
        elif await in_thread(partial(self._has_changed, keeper.placements)):
            await keeper.reconfigure(keeper.section)

    async def _settle_all(self) -> None:
        placements = self._keeper.placements
        if placements is not None and placements.active and not placements.is_settled:
            await self._keeper.step("settle", self._settle)

    def _has_changed(self, placements: Placements) -> bool:
        try:
            return not same_cpus(self._keeper.machine.topology(), placements.allocator.tree.topology)
        except UserError as error:
            telemetry.logger().warning(Event.PLACEMENT_DOUBTFUL, reason=str(error))
            return False

    async def _end_gone_sandboxes(self) -> None:
        """Free the CPUs of sandboxes whose control group has disappeared.

        After a restart, containerd does not tell by NRI when a sandbox ends that it had before.
        """
        placements, group = self._keeper.placements, self._keeper.machine.group
        if placements is None:
            return
        sandboxes, containers = dict(placements.sandboxes), dict(placements.containers)

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

    def _settle(self, placements: Placements) -> None:
        """Place all containers, and free CPUs that were kept for later containers of a pod and that none came for."""
        placements.place_all()
        now = self._keeper.clock.monotonic()
        for pod in placements.allocator.state().handed:
            if now - self._placer.last_creation.setdefault(pod, now) >= _SETTLED:
                placements.allocator.hand_back(pod)

    async def _rebalance(self) -> None:
        """Move a few shared containers to better pools. The search takes long and runs in a thread."""
        keeper = self._keeper
        placements = keeper.placements
        if placements is None or not placements.active or placements is self._balanced:
            return
        moves = (await in_thread(partial(rebalance_plan, placements.allocator)))[:_MOST_MOVES]
        if not moves:
            self._balanced = placements
            return

        def move(twin: Placements) -> None:
            # A plan is valid only for the placements that it was made for.
            if keeper.placements is placements:
                twin.allocator.apply(moves)
                for each in moves:
                    _tell_move(each)

        await keeper.step("rebalance", move)

    async def _look_for_drift(self) -> None:
        placer, keeper = self._placer, self._keeper
        placements, pins = keeper.placements, dict(keeper.pins)
        if placements is None:
            return
        wanted = {key: keeper.outgoing(pin) for key, pin in pins.items() if pin.container_id}
        sandboxes = placements.sandboxes

        def look() -> set[ContainerKey]:
            found = set()
            for key, pin in wanted.items():
                group = keeper.machine.group(sandboxes[key[0]], pin.container_id)
                if group is not None:
                    placer.seen.add(pin.container_id)
                if group is not None and not agrees(pin, group.cpus, group.mems):
                    found.add(key)
            return found

        drifted = {
            key
            for key in await in_thread(look)
            if keeper.pins.get(key) == pins[key] and key not in keeper.unwritten
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
        keeper.unwritten |= drifted

    def _restorations(self, placements: Placements) -> dict[ContainerKey, CpuPin]:
        return {
            key: self._keeper.restoration(key)
            for key in sorted(placements.unpinned)
            if placements.containers[key].id and not placements.containers[key].has_ended
        }

    def _wide(self, pin: CpuPin) -> CpuPin:
        """A pin without memory nodes gets all of them: the memory may have been pinned before."""
        if pin.mems or not self._keeper.section.pin_memory:
            return pin
        return msgspec.structs.replace(pin, mems=self._keeper.everything.mems)

    async def _written(self, pins: list[CpuPin]) -> set[str]:
        """Write pins; returns the ids of containers that the runtime did not change."""
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
                Event.PLACEMENT_UNWRITTEN, reason="the runtime refused to change them", count=len(failed)
            )
        return failed

    async def _tell(self, *, moves: bool) -> None:
        placements = self._keeper.placements
        if placements is not None and moves:
            # The search for moves takes long: only the audit does it, in a thread.
            await in_thread(partial(tell_figures, placements, moves=True))
        elif placements is not None:
            tell_figures(placements, moves=False)


def same_cpus(one: CpuTopology, other: CpuTopology) -> bool:
    """Whether two readings have the same CPUs and nodes; free memory, which always changes, is ignored."""
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
