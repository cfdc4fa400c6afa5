"""The GPUs of a node as an agent follows them: found, sick, well again, gone, replaced."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from colocate.clock import ManualClock
from colocate.errors import UserError
from colocate.gpus import HealthSettings
from colocate.gpus.agent.monitor import GONE, GpuMonitor
from colocate.host.gpu_source import GpuSource, GpuSurvey, Xid
from colocate.host.mock_gpus import LOST, MockGpu, MockGpus, mock_uuid
from tests.support.waiting import until

GIB = 1 << 30
T4 = MockGpu(uuid=mock_uuid("node", 0), model="Tesla T4", memory=16 * GIB, numa=0)
A100 = MockGpu(uuid=mock_uuid("node", 1), model="NVIDIA A100", memory=80 * GIB, numa=1)


class Watch:
    """A monitor that runs, and its clock."""

    def __init__(self, source: GpuSource) -> None:
        self.clock = ManualClock()
        self.monitor = GpuMonitor(source, self.clock, HealthSettings())

    async def troubles(self, *expected: str) -> None:
        """Look until the GPUs, in their order, have these troubles; a piece of each is enough."""

        def hold() -> bool:
            found = [gpu.health.trouble for gpu in self.monitor.gpus.values()]
            self.monitor.look_again()  # What the driver tells and what it answers come in any order.
            return len(found) == len(expected) and all(
                (part in trouble) if part else not trouble
                for part, trouble in zip(expected, found, strict=True)
            )

        await until(hold, f"troubles {expected}", 10)

    async def later(self, seconds: float) -> None:
        """So much later, and after another look."""
        await self.clock.advance(seconds)
        seen = self.monitor.read.count
        self.monitor.look_again()
        await self.monitor.read.beyond(seen)


@asynccontextmanager
async def watching(source: GpuSource) -> AsyncIterator[Watch]:
    watch = Watch(source)
    running = asyncio.ensure_future(watch.monitor.run())
    try:
        await asyncio.wait_for(watch.monitor.read.beyond(0), 10)
        yield watch
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_gpus_are_found_with_all_that_is_known_of_them() -> None:
    async with watching(MockGpus([T4, A100])) as watch:
        first, second = watch.monitor.inventory.gpus
        assert (first.uuid, first.index, first.memory, first.model, first.numa) == (
            T4.uuid,
            0,
            16384,
            "Tesla T4",
            0,
        )
        assert (second.index, second.memory, second.healthy) == (1, 81920, True)


async def test_an_error_makes_a_gpu_unfit_and_five_quiet_minutes_make_it_fit() -> None:
    source = MockGpus([T4, A100])
    async with watching(source) as watch:
        source.xid(T4, 48)
        await watch.troubles("XID 48", "")
        await watch.later(299)
        await watch.troubles("XID 48", "")
        await watch.later(1)
        await watch.troubles("", "")


async def test_an_error_of_a_program_changes_nothing() -> None:
    source = MockGpus([T4])
    async with watching(source) as watch:
        seen = watch.monitor.changed.count
        source.xid(T4, 13)
        source.xid(T4, 48)
        await watch.troubles("XID 48")
        assert watch.monitor.changed.count == seen + 1


async def test_an_error_without_a_gpu_makes_all_of_them_unfit() -> None:
    async with watching(MockGpus([T4, A100])) as watch:
        watch.monitor.take_xid(Xid(79))
        await watch.troubles("XID 79", "XID 79")


async def test_an_error_of_a_gpu_that_nobody_knows_harms_no_other() -> None:
    async with watching(MockGpus([T4, A100])) as watch:
        watch.monitor.take_xid(Xid(79, "GPU-stranger"))
        await watch.troubles("", "")


async def test_a_gpu_that_falls_off_the_bus_stays_unfit_until_it_answers_and_was_quiet() -> None:
    source = MockGpus([T4, A100])
    async with watching(source) as watch:
        source.lose(T4)
        await watch.later(1)
        await watch.troubles(LOST, "")
        await watch.later(1000)
        await watch.troubles(LOST, "")
        source.recover(T4)
        await watch.later(10)
        await watch.troubles(LOST, "")
        await watch.later(300)
        await watch.troubles("", "")


async def test_a_replaced_gpu_is_another_and_its_predecessor_is_gone() -> None:
    source = MockGpus([T4, A100])
    async with watching(source) as watch:
        new = source.replace(T4)
        await watch.later(1)
        assert [gpu.uuid for gpu in watch.monitor.inventory.gpus] == [new.uuid, A100.uuid]


async def test_one_that_is_listed_no_more_stays_known_for_a_while() -> None:
    source = MockGpus([T4, A100])
    async with watching(source) as watch:
        source.configure([T4])
        await watch.later(1)
        await watch.troubles("", GONE)
        source.configure([T4, A100])
        await watch.later(301)
        await watch.troubles("", "")
        source.configure([T4])
        await watch.later(1)
        await watch.later(301)
        await watch.troubles("")


async def test_a_driver_that_answers_nothing_makes_all_of_them_unfit() -> None:
    source = MockGpus([T4, A100])
    async with watching(source) as watch:
        source.silence("driver not loaded")
        await watch.later(1)
        await watch.troubles("driver not loaded", "driver not loaded")
        assert watch.monitor.silent == "driver not loaded"
        source.silence()
        await watch.later(301)
        await watch.troubles("", "")


async def test_a_driver_that_hangs_holds_up_nobody_and_is_not_asked_again_meanwhile() -> None:
    source = Hanging([T4])
    async with watching(source) as watch:
        source.hangs.set()
        watch.monitor.look_again()
        await until(lambda: source.asked == 2, "the second survey", 10)
        await watch.clock.advance(30)
        await watch.troubles("has not answered for 30 s")
        await watch.clock.advance(100)
        assert source.asked == 2
        source.hangs.clear()
        source.goes_on.set()
        watch.monitor.look_again()
        await until(lambda: not watch.monitor.silent, "an answer", 10)
        await watch.later(301)
        await watch.troubles("")


@pytest.mark.parametrize("method", ["survey", "wait_for_xid"])
async def test_whatever_a_binding_raises_is_no_end(method: str) -> None:
    """NVIDIA's library may raise anything, and a thread must not take the agent with it."""
    source = Raising([T4])
    async with watching(source) as watch:
        for error in (ValueError("odd"), SystemExit(3), StopIteration(), MemoryError()):
            source.raises[method] = error
            await watch.later(10)
            await watch.troubles("could not be asked" if method == "survey" else "")
        source.raises.clear()
        await watch.later(301)
        await watch.troubles("")
        source.xid(T4, 48)
        await watch.later(10)
        await watch.troubles("XID 48")


async def test_what_is_used_is_read_without_being_a_change() -> None:
    source = MockGpus([T4])
    async with watching(source) as watch:
        seen = watch.monitor.changed.count
        source.use(T4, 3 * GIB)
        await watch.later(1)
        assert watch.monitor.gpus[T4.uuid].reading.used == 3 * GIB
        assert watch.monitor.changed.count == seen


async def test_a_node_without_gpus_is_ready_too() -> None:
    async with watching(MockGpus([])) as watch:
        await asyncio.wait_for(watch.monitor.ready(), 10)
        assert watch.monitor.inventory.gpus == ()


def test_a_mock_gpu_is_found_by_index_uuid_or_the_beginning_of_one() -> None:
    source = MockGpus([T4, A100])
    assert source.find("1") == A100
    assert source.find(T4.uuid) == T4
    assert source.find(A100.uuid[:9].lower()) == A100
    for name in ("2", "GPU-", "", "GPU-ffffffff", "-1", "²"):
        with pytest.raises(UserError, match="names"):
            source.find(name)


class Hanging(MockGpus):
    """A driver that hangs on demand."""

    def __init__(self, gpus: list[MockGpu]) -> None:
        super().__init__(gpus)
        self.asked = 0
        self.hangs = threading.Event()
        self.goes_on = threading.Event()

    def survey(self) -> GpuSurvey:
        self.asked += 1
        if self.hangs.is_set():
            self.goes_on.wait(60)
        return super().survey()


class Raising(MockGpus):
    """A driver whose binding raises on demand."""

    def __init__(self, gpus: list[MockGpu]) -> None:
        super().__init__(gpus)
        self.raises: dict[str, BaseException] = {}

    def survey(self) -> GpuSurvey:
        if error := self.raises.get("survey"):
            raise error
        return super().survey()

    def wait_for_xid(self, seconds: float) -> Xid | None:
        if error := self.raises.get("wait_for_xid"):
            raise error
        return super().wait_for_xid(0.05)
