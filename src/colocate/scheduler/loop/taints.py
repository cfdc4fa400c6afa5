"""Keeps every node's heat as taints `colocate.dev/load-1` to `-4`, which make schedulers prefer cooler nodes.

A node of heat n has the taints 1 to n, all PreferNoSchedule: nothing is ever kept off a node by them. One process
writes at a time: it holds a lease, which is checked before every write. Writes a minute are bounded. No other taint
is ever changed: if another process changes a node's taints meanwhile, the node waits for the next round. A process
that cannot write, or lacks the facts to, for four times the lease's duration gives the lease up for as long. At its
end a process leaves the taints to another that holds the lease or waits for it; if there is none, it removes them.
In shadow mode nothing is written, no lease is taken, and each change is logged once, as if it had been written.
"""

import asyncio
import os
import socket
import uuid
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from colocate import telemetry
from colocate.aio import deadline, seen_through
from colocate.clock import Clock
from colocate.cluster import json_patch
from colocate.cluster.client import Client
from colocate.cluster.errors import ClusterError, Conflict, NotFound, Unreachable
from colocate.cluster.lease import LeaseHolder, LeaseSettings
from colocate.cluster.resources import NODES, Object
from colocate.errors import UserError
from colocate.load import Heat, TaintChange, TaintPlan, heats, held, plan_taints, pressures, rounded_down
from colocate.model.load import Taint
from colocate.scheduler.loop.table_feed import TableFeed, WatchedNode
from colocate.scheduler.sections import Taints, TaintsOnStop
from colocate.scheduler.server.judge import Judge
from colocate.telemetry import NODE_HEAT, TAINT_WRITES, TAINTS_WAITING, Event

PREFIX = "colocate.dev/load-"
EFFECT = "PreferNoSchedule"
LEVELS = 4
REMOVAL = f"for n in 1 2 3 4; do kubectl taint nodes --all {PREFIX}$n:{EFFECT}-; done"
"""The command that removes them by hand, one by one: kubectl changes no node that lacks one of several."""
_ODD = -1
"""The level of a node whose set of our taints belongs to no level: it is always rewritten."""
_ENDING = 10.0
"""Seconds that a write under way may take at the end."""
_REMOVING = 30.0
"""Seconds that removing all taints, or finding another holder, may take at the end."""
_IN_VAIN = 4
"""How many lease durations the lease is kept while nothing can be written."""
_AT_ONCE = 8


class Tainting:
    """Writes taints, while it holds the lease."""

    def __init__(
        self,
        settings: Taints,
        facts: TableFeed,
        judge: Judge,
        client: Client,
        clock: Clock,
        *,
        shadow: bool = False,
        identity: str = "",
    ) -> None:
        self._settings = settings
        self._facts = facts
        self._judge = judge
        self._client = client
        self._clock = clock
        self._shadow = shadow
        identity = identity or f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}"
        lease = settings.lease
        self.lease = LeaseHolder(
            client,
            LeaseSettings(
                namespace=lease.namespace, name=lease.name, identity=identity, duration=lease.duration
            ),
            clock,
        )
        self._begun = clock.time()
        self._heats: dict[str, Heat] = {}
        self._written: deque[float] = deque(maxlen=settings.per_minute)
        self._hold_in_vain = _IN_VAIN * lease.duration
        self._in_vain = InVain(self._hold_in_vain)
        self._told_in_vain = False
        self._imagined: dict[str, int] = {}
        """In shadow mode, the heat that nodes would show by now."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Write for as long as the body runs; then leave the taints to another process or remove them, as
        configured."""
        if self._shadow:
            # A shadow must not keep the lease from a writer.
            async with self._rounds():
                yield
            return
        async with self.lease.running():
            try:
                async with self._rounds():
                    yield
            finally:
                if self._settings.on_stop is TaintsOnStop.REMOVE:
                    await self._end()

    @asynccontextmanager
    async def _rounds(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            with suppress(TimeoutError):
                async with deadline(self._clock, _ENDING):
                    await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            did: bool | None = False
            try:
                did = await self._round()
            except Exception as error:  # noqa: BLE001 -- whatever it is, the next round must be tried
                telemetry.logger().error(Event.TAINTS_FAILED, exc_info=error)
            self._hand_over_if_in_vain(did)
            await self._clock.sleep(self._settings.period)

    async def _round(self) -> bool | None:
        """Whether this process can write; None where there was nothing to write."""
        # Without samples, what nodes show stays.
        if self._judge.unready() or not self._facts.table.loads:
            return False
        if self._shadow:
            self._imagine(self.planned())
        elif self.lease.held:
            return await self._write(self.planned())
        else:
            # Another process writes: when it stops, start from the taints that nodes show.
            self._heats.clear()
        return None

    def _hand_over_if_in_vain(self, did: bool | None) -> None:
        if did or not self.lease.held:
            self._in_vain.forget()
            self._told_in_vain = self._told_in_vain and not did
        elif self._in_vain.for_too_long(did, self._clock.monotonic()):
            self._in_vain.forget()
            self.lease.stand_back(self._hold_in_vain)
            if not self._told_in_vain:
                self._told_in_vain = True
                telemetry.logger().warning(
                    Event.TAINTS_HANDED_OVER, seconds=self._hold_in_vain, reason=self._why_in_vain()
                )

    def _why_in_vain(self) -> str:
        if unready := self._judge.unready():
            return "; ".join(unready)
        return "no taint could be written" if self._facts.table.loads else "no node has a sample"

    def planned(self) -> TaintPlan:
        """What would be written now."""
        table, now = self._facts.table, self._clock.time()
        table.advance(now)
        shown = self.shown()
        pressed = {name: value for name, value in pressures(table).items() if name in shown}
        before = {
            name: self._heats.get(name) or Heat(pressed[name], shown[name], shown[name])
            for name in pressed
            if name in self._heats or shown[name] > 0
        }
        unmeasured = held(table, self._begun, self._settings.heat)
        access = {name: node.access for name, node in table.nodes.items()}
        self._heats = heats(pressed, before, self._settings.heat, unmeasured, access)
        for level in range(LEVELS + 1):
            NODE_HEAT.labels(str(level)).set(sum(heat.level == level for heat in self._heats.values()))
        made = plan_taints(
            shown, self._heats, self._written, self._clock.monotonic(), self._settings.per_minute
        )
        TAINTS_WAITING.set(made.waiting)
        return made

    def shown(self) -> dict[str, int]:
        """The heat that nodes show, or would in shadow mode; below 0 where their taints belong to no level."""
        shown = {node.metadata.name: level_of(node.spec.taints) for node in self._facts.nodes}
        self._imagined = {name: level for name, level in self._imagined.items() if name in shown}
        return shown | self._imagined

    def _imagine(self, planned: TaintPlan) -> None:
        for change in planned.changes:
            self._imagined[change.node] = change.after
            self._written.append(self._clock.monotonic())
            self._tell(change)

    async def _write(self, planned: TaintPlan) -> bool | None:
        """Whether any could be written; None where there was nothing to."""
        did: bool | None = None
        for change in planned.changes:
            if not self.lease.held:
                break
            # A cancelled write might take effect after all taints were removed.
            did = await seen_through(self._write_one(change)) or bool(did)
        return did

    async def _write_one(self, change: TaintChange) -> bool:
        """Whether the node could be written."""
        try:
            if await self._set(change.node, change.after):
                self._tell(change)
        except (ClusterError, UserError) as error:
            # Another write came first, or the node is gone: no error.
            if not isinstance(error, Conflict | NotFound):
                telemetry.logger().warning(Event.TAINTS_FAILED, node=change.node, error=str(error))
                return False
        return True

    def _tell(self, change: TaintChange) -> None:
        telemetry.logger().info(
            Event.TAINTS_CHANGED,
            node=change.node,
            before=change.before,
            after=change.after,
            pressure=rounded_down(change.pressure, 1),
            shadow=self._shadow,
        )

    async def _set(self, node: str, level: int) -> bool:
        """Bring a node's taints to a level; whether there was anything to write."""
        try:
            # Read now, not from the cache: the patch must match the node as it is.
            seen: Object = await self._client.get(NODES, node)
            spec = seen.get("spec")
            taints = spec.get("taints") if isinstance(spec, Mapping) else None
            wanted = with_level(taints, level)
            patch = json_patch.set_value(seen, ("spec", "taints"), wanted or None)
            if not patch or not self.lease.held:
                return False
            self._written.append(self._clock.monotonic())
            await self._client.patch(NODES, node, patch)
        except ClusterError as error:
            TAINT_WRITES.labels(_outcome(error)).inc()
            raise
        TAINT_WRITES.labels("written").inc()
        return True

    async def _end(self) -> None:
        begun = self._clock.monotonic()
        if await self.lease.leave(_REMOVING):
            await self._remove_all(begun + _REMOVING - self._clock.monotonic())
            return
        nodes = len(tainted(self._facts.nodes))
        if self.lease.another:
            telemetry.logger().info(Event.TAINTS_PASSED_ON, nodes=nodes, holder=self.lease.another)
        elif nodes and (self.lease.ever_held or not self.lease.error):
            # Do not warn if this process never held the lease and cannot read it.
            self._tell_left(
                nodes, 0, self.lease.error or "no process renews the lease, and it has not expired yet"
            )

    async def _remove_all(self, seconds: float) -> None:
        """Remove all taints now, without the bound per minute: no later round will."""
        hot: Sequence[str] = tainted(self._facts.nodes)
        removed: list[str] = []
        limit = asyncio.Semaphore(_AT_ONCE)

        async def remove(name: str) -> None:
            async with limit:
                if await self._removed(name):
                    removed.append(name)

        reason = ""
        try:
            async with deadline(self._clock, seconds):
                # Read now, not from the cache, which may lack the last writes.
                hot = tainted(await self._client.list(NODES.read_as(WatchedNode)))
                await asyncio.gather(*map(remove, hot))
        except TimeoutError:
            reason = f"the API server did not answer in {seconds:.0f} s"
        except (ClusterError, UserError) as error:
            reason = str(error)
        if not reason and len(removed) == len(hot):
            telemetry.logger().info(Event.TAINTS_REMOVED, nodes=len(removed))
            return
        if not self.lease.held:
            reason = reason or self.lease.error or "this process does not hold the lease"
        self._tell_left(len(hot) - len(removed), len(removed), reason)

    def _tell_left(self, nodes: int, removed: int, reason: str) -> None:
        unless = "" if self.lease.held else "unless another replica writes them: "
        telemetry.logger().warning(
            Event.TAINTS_LEFT, nodes=nodes, removed=removed, reason=reason, remedy=unless + REMOVAL
        )

    async def _removed(self, name: str) -> bool:
        """Remove a node's taints; whether it has none now."""
        for _ in range(3):
            try:
                # Nothing is written where there is nothing to remove, and where the lease is lost.
                return await self._set(name, 0) or self.lease.held
            except NotFound:
                return True
            except Conflict:
                continue
            except (ClusterError, UserError) as error:
                telemetry.logger().warning(Event.TAINTS_FAILED, node=name, error=str(error))
                return False
        return False


def _outcome(error: ClusterError) -> str:
    match error:
        case NotFound():
            return "gone"
        case Conflict():
            return "overtaken"
        case Unreachable():
            return "unreachable"
    return "refused"


class InVain:
    """For how long all tries of this process have failed."""

    def __init__(self, most: float) -> None:
        self._most = most
        self._since: float | None = None

    def forget(self) -> None:
        self._since = None

    def for_too_long(self, did: bool | None, now: float) -> bool:
        """Whether all tries up to this one have failed for so many seconds.

        `did` says how this one went, None where there was nothing to try, which proves nothing.
        """
        if did:
            self._since = None
        elif did is False and self._since is None:
            self._since = now
        return self._since is not None and now >= self._since + self._most


def keys(level: int) -> tuple[str, ...]:
    """The taints of a level."""
    return tuple(f"{PREFIX}{number}" for number in range(1, level + 1))


def level_of(taints: Sequence[Taint]) -> int:
    """The level that a node shows."""
    ours = [taint.key for taint in taints if _is_ours(taint.key, taint.effect)]
    level = len(ours)
    return level if set(ours) == set(keys(level)) else _ODD


def tainted(nodes: Iterable[WatchedNode]) -> list[str]:
    """The nodes that have any of our taints."""
    return [node.metadata.name for node in nodes if level_of(node.spec.taints) != 0]


def with_level(taints: object, level: int) -> list[object]:
    """A node's taints with ours brought to a level; all others stay as and where they are."""
    others = [one for one in taints if not _is_one_of_ours(one)] if isinstance(taints, list) else []
    return [*others, *({"key": key, "effect": EFFECT} for key in keys(level))]


def _is_one_of_ours(taint: object) -> bool:
    return isinstance(taint, Mapping) and _is_ours(taint.get("key"), taint.get("effect"))


def _is_ours(key: object, effect: object) -> bool:
    """Whether we write it: a taint is known by its key and its effect together."""
    return effect == EFFECT and key in keys(LEVELS)
