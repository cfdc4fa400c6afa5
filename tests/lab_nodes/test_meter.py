"""How busy this machine's pods are, by what /proc says of their processes."""

import os
from pathlib import Path

import pytest

from colocate.lab.api.metrics import RESOLUTION, MetricsUsage, NodeReading, PodReading
from colocate.lab.nodes.meter import NodesMeter
from colocate.lab.nodes.processes import Used, used
from colocate.lab.pod_runtime import ProcessRuntime, SimulatedRuntime
from colocate.lab.pod_worker import PodRecord
from colocate.testing import TestNode, embedded_kubelet
from tests.support.waiting import until

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
START = 1_700_000_000.0


class Processes:
    """A folder that looks like /proc."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "self").mkdir()
        (folder / "meminfo").touch()

    def put(
        self,
        pid: int,
        *,
        parent: int = 1,
        session: int = 0,
        name: str = "sh",
        seconds: tuple[float, ...] = (0,),
        pages: int = 0,
    ) -> None:
        """`seconds`: of its own in user and system mode, then those of its children that have ended."""
        ticks = [round(one * TICKS) for one in (*seconds, 0, 0, 0)[:4]]
        fields = [
            "S",
            parent,
            pid,
            session or pid,
            0,
            -1,
            0,
            1,
            2,
            3,
            4,
            *ticks,
            20,
            0,
            1,
            0,
            99,
            12345,
            pages,
        ]
        (self.folder / str(pid)).mkdir(exist_ok=True)
        line = f"{pid} ({name}) {' '.join(map(str, fields))} 18446744073709551615 0 0\n"
        (self.folder / str(pid) / "stat").write_text(line)


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path)


def test_a_process_is_counted_with_all_that_it_has_started(processes: Processes) -> None:
    processes.put(100, seconds=(1, 0.5, 4, 2), pages=10)
    processes.put(101, parent=100, session=100, seconds=(2,), pages=5, name="a) (b c")
    processes.put(102, parent=101, session=102, seconds=(0.25,), pages=2)  # a session of its own
    processes.put(103, parent=102, session=102, seconds=(0.25,), pages=1)
    processes.put(104, parent=1, session=100, seconds=(8,), pages=3)  # an orphan
    processes.put(200, seconds=(64,), pages=64)
    processes.put(300, seconds=(128,), pages=128)
    assert used({100, 300}, processes.folder) == {
        100: Used(18.0, 21 * PAGE),
        300: Used(128.0, 128 * PAGE),
    }


def test_one_that_is_not_there_any_more_is_left_out(processes: Processes) -> None:
    (processes.folder / "100").mkdir()
    processes.put(101, parent=1, session=100, seconds=(1,))
    assert used({100}, processes.folder) == {}


class Measured:
    """A node whose containers have the processes that a test gives them."""

    def __init__(self, node: TestNode, processes: Processes) -> None:
        self.node = node
        self.processes = processes
        self.meter = NodesMeter(node.kubelet, {"simulated"}, node.clock, processes.folder)

    def start(self, record: PodRecord, pid: int, container: str = "main") -> None:
        runtime = self.node.kubelet.runtime
        assert isinstance(runtime, SimulatedRuntime)
        runtime.containers[record.pod.uid, container].pid = pid  # type: ignore[assignment]

    async def later(self, seconds: float = RESOLUTION) -> None:
        await self.node.clock.advance(seconds)
        await self.meter.measure()


@pytest.fixture
def measured(node: TestNode, processes: Processes) -> Measured:
    return Measured(node, processes)


async def test_two_measurements_make_a_reading_and_pods_make_the_node(measured: Measured) -> None:
    pods = [await measured.node.run_pod({}) for _ in range(2)]
    for pid, pod in enumerate(pods, start=100):
        measured.start(pod, pid)
        measured.processes.put(pid, seconds=(10,), pages=1)
    await measured.meter.measure()
    assert measured.meter.pod(pods[0].pod.uid) is None
    assert measured.meter.node("lab") == NodeReading(START, RESOLUTION, MetricsUsage())

    measured.processes.put(100, seconds=(10, 7.5), pages=4)
    measured.processes.put(101, seconds=(13,), pages=2)
    await measured.later(30)
    first, second = (measured.meter.pod(pod.pod.uid) for pod in pods)
    assert first == PodReading(START + 30, 30, {"main": MetricsUsage(0.25, 4 * PAGE)})
    assert second == PodReading(START + 30, 30, {"main": MetricsUsage(0.1, 2 * PAGE)})
    assert measured.meter.node("lab") == NodeReading(START + 30, 30, MetricsUsage(0.35, 6 * PAGE))


async def test_a_pod_with_a_container_that_has_just_started_has_no_reading(measured: Measured) -> None:
    sidecar = {"name": "sidecar", "image": "any", "restartPolicy": "Always"}
    pod = await measured.node.run_pod({}, initContainers=[sidecar])
    for pid, container in ((100, "main"), (101, "sidecar")):
        measured.start(pod, pid, container)
        measured.processes.put(pid, seconds=(3,))
    await measured.meter.measure()
    await measured.later()
    reading = measured.meter.pod(pod.pod.uid)
    assert reading is not None
    assert list(reading.containers) == ["sidecar", "main"]

    measured.start(pod, 102)
    measured.processes.put(102, seconds=(1,))
    await measured.later()
    assert measured.meter.pod(pod.pod.uid) is None
    await measured.later()
    assert measured.meter.pod(pod.pod.uid) is not None

    await measured.node.delete_pod(pod)
    await measured.later()
    assert measured.meter.pod(pod.pod.uid) is None


async def test_time_that_children_take_with_them_is_not_negative(measured: Measured) -> None:
    pod = await measured.node.run_pod({})
    measured.start(pod, 100)
    measured.processes.put(100, seconds=(10,))
    await measured.meter.measure()
    measured.processes.put(100, seconds=(9,))
    await measured.later()
    reading = measured.meter.pod(pod.pod.uid)
    assert reading is not None
    assert reading.containers["main"].cpu == 0


async def test_what_has_no_process_is_not_measured(measured: Measured) -> None:
    pod = await measured.node.run_pod({})
    await measured.meter.measure()
    await measured.later()
    assert measured.meter.pod(pod.pod.uid) is None
    assert measured.meter.node("simulated") == NodeReading(START + 15, RESOLUTION, MetricsUsage())
    assert measured.meter.node("other") is None


async def test_a_real_process_is_measured_with_its_children(tmp_path: Path) -> None:
    runtime = ProcessRuntime(tmp_path / "pods", parent="none", mount=tmp_path / "no control groups")
    async with embedded_kubelet(runtime=runtime) as node:
        meter = NodesMeter(node.kubelet, (), node.clock)
        record = await node.run_pod({}, command=["sh", "-c", "(while :; do :; done) & wait"])
        running = runtime.running(record.pod, "main")
        assert running is not None
        pid = running.pid
        assert pid is not None
        await until(lambda: used({pid})[pid].seconds > 0.05, "some work")
        await meter.measure()
        done = used({pid})[pid].seconds
        await until(lambda: used({pid})[pid].seconds > done + 0.1, "more work")
        await node.clock.advance(1)
        await meter.measure()
        reading = meter.pod(record.pod.uid)
        assert reading is not None
        assert 0.1 <= reading.containers["main"].cpu < 10
        assert reading.containers["main"].memory > 100_000
