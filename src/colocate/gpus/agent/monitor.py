"""The GPUs of this node as they are known now: read again and again in threads, with their health.

The driver is asked in threads that end with the process: a call that a sick GPU holds up holds up nothing else, and
after a while counts as no answer. A GPU that the driver lists no more stays known, unfit, until another has its place
or it has been away for as long as a GPU takes to recover.
"""

import asyncio
from collections.abc import Mapping
from functools import partial

import msgspec

from colocate import telemetry
from colocate.aio import Watched, deadline, first, in_daemon
from colocate.clock import Clock
from colocate.gpus import FIT, GpuHealth, HealthSettings, after_look, after_xid
from colocate.host.gpu_source import GpuReading, GpuSource, GpuSurvey, GpuUnavailable, Xid
from colocate.model.gpu import Gpu, GpuInventory
from colocate.telemetry import Event

GONE = "the driver no longer lists it"
_PATIENCE = 30.0
"""Seconds that the driver has to answer."""
_XID_WAIT = 5.0


class KnownGpu(msgspec.Struct, frozen=True):
    """A GPU, as it was read last, and whether it is fit for new pods."""

    reading: GpuReading
    health: GpuHealth = FIT

    @property
    def uuid(self) -> str:
        return self.reading.uuid

    @property
    def fact(self) -> Gpu:
        """This GPU as the decisions take it."""
        reading = self.reading
        return Gpu(
            uuid=reading.uuid,
            index=reading.index,
            memory=reading.memory >> 20,
            model=reading.model,
            numa=reading.numa,
            mig=reading.mig,
            healthy=self.health.is_fit,
            trouble=self.health.trouble,
        )


class GpuMonitor:
    """Follows the GPUs that a source tells of."""

    def __init__(
        self, source: GpuSource, clock: Clock, settings: HealthSettings, refresh: float = 10.0
    ) -> None:
        self.settings = settings
        self.refresh = refresh
        self.source = source
        self.changed = Watched()
        """Counts the moments at which a GPU came, went, or became fit or unfit; the first answer is one."""
        self.read = Watched()
        """Counts surveys that were answered, or were not."""
        self.silent = "no survey was made yet"
        """Why nothing was heard of the GPUs last; empty where something was."""
        self.unknown: tuple[str, ...] = ()
        """What is there and never said who it is."""
        self.clock = clock
        self._known: dict[str, KnownGpu] = {}
        self._since: dict[str, float] = {}
        """By UUID, since when a GPU that is known is not listed."""
        self._asked = Watched()
        self._survey: asyncio.Future[GpuSurvey] | None = None
        self._log = telemetry.logger()

    @property
    def inventory(self) -> GpuInventory:
        """All known GPUs as the decisions take them."""
        return GpuInventory(tuple(gpu.fact for gpu in self._known.values()))

    @property
    def gpus(self) -> Mapping[str, KnownGpu]:
        """By UUID, in the driver's order."""
        return self._known

    @property
    def is_ready(self) -> bool:
        """Whether the driver has ever answered."""
        return bool(self._known) or not self.silent

    async def ready(self) -> None:
        """Return once the driver has answered."""
        while not self.is_ready:
            await self.changed.beyond(self.changed.count)

    def look_again(self) -> None:
        """Survey at once."""
        self._asked.changed()

    async def run(self) -> None:
        """Follow until cancelled."""
        try:
            await first(self._survey_again_and_again(), self._hear_of_errors())
        finally:
            # In a thread: a driver that hangs keeps no agent from stopping.
            in_daemon(self.source.close, "gpu close")

    async def _survey_again_and_again(self) -> None:
        while True:
            seen = self._asked.count
            await self.survey()
            await first(self.clock.sleep(self.refresh), self._asked.beyond(seen))

    async def survey(self) -> None:
        """Ask the driver once, and take what it says."""
        if self._survey is None:
            self._survey = in_daemon(self.source.survey, "gpu survey")
        try:
            async with deadline(self.clock, _PATIENCE):
                found = await asyncio.shield(self._survey)
        except TimeoutError:
            # It is not asked again before it has answered.
            self._hear_nothing(f"the driver has not answered for {_PATIENCE:g} s")
            return
        except GpuUnavailable as error:
            self._survey = None
            self._hear_nothing(str(error))
        except Exception as error:  # noqa: BLE001 -- a binding to a foreign library may raise anything
            self._survey = None
            self._hear_nothing(f"the driver could not be asked: {type(error).__name__}: {error}")
        else:
            self._survey = None
            self._take(found)
        self.read.changed()

    async def _hear_of_errors(self) -> None:
        while True:
            try:
                xid = await asyncio.shield(
                    in_daemon(partial(self.source.wait_for_xid, _XID_WAIT), "gpu errors")
                )
            except Exception:  # noqa: BLE001 -- the surveys tell why nothing answers
                await self.clock.sleep(self.refresh)
                continue
            if xid is not None:
                self.take_xid(xid)

    def take_xid(self, xid: Xid) -> None:
        """The driver has told of an error."""
        ignored = xid.code in self.settings.ignored_xids
        self._log.warning(Event.GPU_XID, gpu=xid.uuid or "unknown", xid=xid.code, ignored=ignored)
        telemetry.GPU_XIDS.labels(xid.uuid or "unknown", str(xid.code)).inc()
        now = self.clock.monotonic()
        # An error without a GPU may be of any GPU.
        met = {xid.uuid} if xid.uuid else set(self._known)
        self._put(
            {
                uuid: KnownGpu(gpu.reading, after_xid(gpu.health, xid.code, now, self.settings))
                if uuid in met
                else gpu
                for uuid, gpu in self._known.items()
            }
        )

    def _take(self, survey: GpuSurvey) -> None:
        now = self.clock.monotonic()
        was_ready, self.silent, self.unknown = self.is_ready, "", survey.unknown
        found = {reading.uuid: self._after(reading, now) for reading in survey.gpus}
        places = {reading.index for reading in survey.gpus}
        for uuid, gpu in self._known.items():
            if uuid in found:
                self._since.pop(uuid, None)
                continue
            away = now - self._since.setdefault(uuid, now)
            if gpu.reading.index not in places and away < self.settings.recovery:
                reading = msgspec.structs.replace(gpu.reading, used=None, processes=None, problem=GONE)
                found[uuid] = self._after(reading, now)
            else:
                del self._since[uuid]
                self._log.warning(Event.GPU_GONE, gpu=uuid, index=gpu.reading.index)
        self._put(dict(sorted(found.items(), key=lambda each: each[1].reading.index)))
        if not was_ready:
            self.changed.changed()

    def _after(self, reading: GpuReading, now: float) -> KnownGpu:
        known = self._known.get(reading.uuid)
        health = known.health if known else FIT
        return KnownGpu(reading, after_look(health, reading.problem, now, self.settings))

    def _hear_nothing(self, reason: str) -> None:
        if reason != self.silent:
            self._log.error(Event.GPU_SILENT, reason=reason, effect="no GPU is given to new pods")
        self.silent = reason
        now = self.clock.monotonic()
        readings = [
            msgspec.structs.replace(gpu.reading, used=None, processes=None, problem=reason)
            for gpu in self._known.values()
        ]
        self._put({reading.uuid: self._after(reading, now) for reading in readings})

    def _put(self, known: dict[str, KnownGpu]) -> None:
        before, self._known = self._known, known
        for uuid, gpu in known.items():
            was = before[uuid].health.trouble if uuid in before else ""
            if gpu.health.trouble and not was:
                self._log.warning(
                    Event.GPU_UNFIT, gpu=uuid, index=gpu.reading.index, reason=gpu.health.trouble
                )
            elif was and not gpu.health.trouble:
                self._log.info(Event.GPU_FIT, gpu=uuid, index=gpu.reading.index)
        if [gpu.fact for gpu in before.values()] != [gpu.fact for gpu in known.values()]:
            self.changed.changed()
