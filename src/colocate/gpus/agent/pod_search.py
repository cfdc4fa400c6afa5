"""Looks for the unknown pod of an Allocate: reads what the watch has not told, in bounded time.

A kubelet admits one pod at a time, and its Allocate names none: a tenant who creates pods with a node's name and
deletes them at once makes it ask for pods that are gone. So the seconds that such questions take come out of one
budget, which fills again slowly, and reads of the API server out of another.
"""

import asyncio
from collections.abc import Awaitable, Callable

from colocate import telemetry
from colocate.aio import deadline, first
from colocate.clock import Clock
from colocate.cluster.errors import ClusterError
from colocate.errors import UserError
from colocate.gpus import GpuMatch, GpuRefusal
from colocate.gpus.agent.pods import NodePods
from colocate.telemetry import GPU_HELD_UP, Event

Match = Callable[[], Awaitable[GpuMatch | GpuRefusal]]

LONGEST = 2.0
"""Seconds for one pod that is not known, while the budget lasts."""
UNHEARD = 8.0
"""Seconds while the API server has not told of any pod; a plugin has 10 s to answer by default."""
LEAST = 0.1
"""Seconds for one pod when the budget is spent: enough for an answer of an API server that is near."""
CAPACITY = 8.0
SHARE = 0.05
"""Seconds that a second adds to the budget."""
READS = 20.0
READS_A_SECOND = 10.0
"""Reads of the API server: so many at once, and so many a second from then on."""


class Patience:
    """The budget of one node."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at = clock.monotonic()
        self._seconds = CAPACITY
        self._reads = READS

    def allowance(self, *, heard: bool) -> float:
        """Seconds for a pod that is not known; `heard`: the API server has told of pods before."""
        self._fill()
        return max(LEAST, min(self._seconds, LONGEST if heard else UNHEARD))

    def spend(self, seconds: float) -> None:
        """Count the seconds that were waited."""
        self._fill()
        self._seconds = max(0.0, self._seconds - seconds)

    def may_read(self) -> bool:
        """Whether the API server may be asked now; it counts as done."""
        self._fill()
        if self._reads < 1:
            return False
        self._reads -= 1
        return True

    def _fill(self) -> None:
        now = self._clock.monotonic()
        passed, self._at = now - self._at, now
        self._seconds = min(CAPACITY, self._seconds + passed * SHARE)
        self._reads = min(READS, self._reads + passed * READS_A_SECOND)


class PodSearch:
    """Answers by what is known, or by what becomes known while the kubelet waits."""

    def __init__(self, pods: NodePods, clock: Clock) -> None:
        self.patience = Patience(clock)
        self._pods = pods
        self._clock = clock
        self._log = telemetry.logger()

    async def answered(self, resource: str, match: Match, heard: Callable[[], bool]) -> GpuMatch | GpuRefusal:
        """What `match` says, asked again when more is known; `heard`: whether any pods are."""
        result = await match()
        if isinstance(result, GpuMatch) or not result.unknown:
            return result
        begun = self._clock.monotonic()
        try:
            async with deadline(self._clock, self.patience.allowance(heard=heard())):
                return await self._found(match, heard)
        except TimeoutError:
            return result
        finally:
            waited = self._clock.monotonic() - begun
            self.patience.spend(waited)
            GPU_HELD_UP.labels(resource).inc(waited)

    async def _found(self, match: Match, heard: Callable[[], bool]) -> GpuMatch | GpuRefusal:
        """Read the pods of this node as they are now, and follow the watch meanwhile: the first to tell wins. A read
        without the pod ends the search: the pod is gone, and others wait for their admission."""
        while True:
            had_heard = heard()
            seen = self._pods.changed.count
            reading = asyncio.ensure_future(self._read()) if had_heard and self.patience.may_read() else None
            try:
                while True:
                    if reading is not None:
                        await first(_done(reading), self._pods.changed.beyond(seen))
                    else:
                        await self._pods.changed.beyond(seen)
                    seen = self._pods.changed.count
                    complete = reading is not None and reading.done() and reading.result()
                    result = await match()
                    if isinstance(result, GpuMatch) or not result.unknown or complete:
                        return result
                    if reading is not None and reading.done():
                        reading = None  # The read failed; the watch may still tell.
                    if not had_heard and heard():
                        break  # From now on, a read may find it.
            finally:
                if reading is not None:
                    reading.cancel()  # Not waited for: an answer that is remembered must be given.

    async def _read(self) -> bool:
        try:
            await self._pods.read_ahead()
            return True
        except (ClusterError, UserError) as error:
            self._log.warning(Event.GPU_PODS_UNREAD, reason=str(error))
            return False


async def _done(task: "asyncio.Future[bool]") -> None:
    await asyncio.wait([task])
