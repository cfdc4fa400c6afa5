"""What a unit costs a kubelet: too many devices are not offered, and a finer unit drains beside a coarser one."""

import asyncio
import signal
import time

import pytest

from colocate.errors import UserError
from colocate.gpus import ANNOUNCED, COLOCATE
from colocate.gpus.agent.control import EXPLAIN, ExplainGpuPod
from colocate.lab.api.resources import NODES, PODS
from colocate.lab.cluster import MACHINE
from colocate.lab.device_table import DeviceTable
from colocate.wire import control_socket as control
from tests.gpu_agent.lab import A100, MEMORY, MOCKS, T4, GpuLab, gpu_lab
from tests.support.waiting import until

OURS = COLOCATE.memory
BOTH = 15360 + 40536
FINE = [{"name": "doslab"}]
COARSE = [{"name": "colocate"}]
DRAINING = [{"name": "colocate"}, {"name": "doslab", "drain": True}]


def table(lab: GpuLab) -> DeviceTable:
    return lab.cluster.kubelet.devices.table


async def offered(lab: GpuLab, resource: str, count: int) -> None:
    def so() -> bool:
        assert lab.agent is None or lab.agent.returncode is None, f"the agent ended:\n{lab.log()}"
        return len(table(lab).healthy(resource)) == count

    try:
        await until(so, f"{count} of {resource}", 30)
    except AssertionError as error:
        raise AssertionError(f"{error}; there are {len(table(lab).healthy(resource))}\n{lab.log()}") from None


async def test_a_kubelet_from_1_36_on_is_not_offered_what_would_stop_it() -> None:
    async with gpu_lab(kubelet_version=(1, 36)) as lab:
        lab.configure(MOCKS, dialects=FINE)
        await lab.start_agent()
        assert lab.agent is not None
        assert await asyncio.wait_for(lab.agent.wait(), 60) == 2
        assert (
            "doslab.io/gpu-memory in 1 MiB: 55896 devices, of which pods could hold 55896, would keep a kubelet from "
            "1.36 on busy for up to 406 s at every restart, while no pod starts; serve colocate.dev/gpu-memory with "
            "a unit of 256Mi" in lab.log()
        )
        assert not table(lab).devices.get(MEMORY)


async def test_an_older_kubelet_is_offered_it_with_a_warning() -> None:
    async with gpu_lab(kubelet_version=(1, 35)) as lab:
        lab.configure(MOCKS, dialects=FINE)
        await lab.start_agent()
        await offered(lab, MEMORY, BOTH)
        [note] = [note for note in (await lab.report()).notes if "1.36" in note]
        assert note.startswith(
            "before this node's kubelet becomes 1.36 or newer: doslab.io/gpu-memory in 1 MiB"
        )
        assert "gpu.devices_dear" in lab.log()


async def becomes(lab: GpuLab, version: tuple[int, int]) -> None:
    """Another kubelet starts, not within the second in which the last one wrote the node's status."""
    kubelet = lab.cluster.kubelet
    await kubelet.stop()
    last = time.time()
    await until(lambda: time.time() >= last + 1, "the next second", 5)
    kubelet.version = version
    await kubelet.start()


async def test_a_kubelet_that_becomes_1_36_under_a_running_agent_is_offered_nothing() -> None:
    async with gpu_lab(kubelet_version=(1, 35)) as lab:
        lab.configure(MOCKS, dialects=FINE)
        await lab.start_agent()
        await offered(lab, MEMORY, BOTH)
        listener, lab.cluster.kubelet.listener = lab.cluster.kubelet.listener, None
        assert listener is not None
        await becomes(lab, (1, 36))
        # The node still says 1.35: by the kubelet that is gone.
        await until(lambda: "has not written its version" in lab.log(), "the agent to wait for it", 30)
        assert not table(lab).devices.get(MEMORY)
        lab.cluster.kubelet.listener = listener
        listener.started(False)
        refusal = "1.36 on busy for up to 406 s"
        count = lab.log().count(refusal)
        await until(lambda: lab.log().count(refusal) > count, "the agent to refuse it", 30)
        assert not table(lab).devices.get(MEMORY)
        assert not lab.cluster.kubelet.devices.lookups
        assert lab.agent is not None
        assert lab.agent.returncode is None, "pods that run need its proofs"
        await becomes(lab, (1, 35))
        await offered(lab, MEMORY, BOTH)


async def test_gpus_that_come_later_are_not_offered_where_they_are_too_many() -> None:
    small = {**MOCKS[0], "memory": "150Mi"}
    async with gpu_lab(kubelet_version=(1, 36)) as lab:
        lab.configure([small], dialects=FINE)
        await lab.start_agent()
        await offered(lab, MEMORY, 150)
        lab.configure([{**small, "memory": "20Gi"}, MOCKS[1]], dialects=FINE)
        lab.hang_up()
        await until(lambda: "GPUs that have come are not offered" in lab.log(), "a word of it", 30)
        await offered(lab, MEMORY, 150)
        assert len(table(lab).devices[MEMORY]) == 150
        assert any("1.36 on busy" in note for note in (await lab.report()).notes)
        lab.configure([small, {**MOCKS[1], "memory": "400Mi"}], dialects=FINE)
        lab.hang_up()
        await offered(lab, MEMORY, 550)
        assert not (await lab.report()).notes


async def test_blocks_and_mock_devices_count_as_well() -> None:
    """The default unit of small GPUs is nothing; ten thousand mock devices beside it are too many."""
    async with gpu_lab(kubelet_version=(1, 36)) as lab:
        lab.configure(MOCKS, dialects=COARSE)
        text = lab.config.read_text()
        lab.config.write_text(f"{text}\nmock: {{resources: [{{name: mock/many, count: 9900}}]}}\n")
        await lab.start_agent()
        assert lab.agent is not None
        assert await asyncio.wait_for(lab.agent.wait(), 60) == 2
        assert (
            "mock/many beside 218 devices of colocate.dev/gpu-memory in 256 MiB: 10118 devices" in lab.log()
        )
        assert "lower the count of mock/many in mock.resources" in lab.log()


async def test_a_kubelet_that_restarts_with_the_default_unit_admits_at_once() -> None:
    """The embedded kubelet costs what a real one does: the look-ups are counted, and none of them is felt."""
    async with gpu_lab(kubelet_version=(1, 36)) as lab:
        gpus = [
            {"model": "T4", "memory": "15360Mi", "count": 2},
            {"model": "A100", "memory": "40536Mi", "count": 2},
        ]
        lab.configure(gpus, dialects=COARSE)
        await lab.start_agent()
        await offered(lab, OURS, 2 * 60 + 2 * 158)
        for number in range(20):
            lab.create_pod(f"pod-{number}", 8, resource=OURS)
        for number in range(20):
            await lab.until_phase(f"pod-{number}")
        await lab.cluster.kubelet.restart()
        await offered(lab, OURS, 436)
        assert 0 < lab.cluster.kubelet.devices.lookups <= 2 * 436 * 160
        lab.create_pod("later", 8, resource=OURS)
        await lab.until_phase("later")


async def test_a_unit_is_changed_while_pods_run() -> None:
    """The old resource drains: what is held stays through restarts of both, the new one is offered beside it."""
    async with gpu_lab() as lab:
        lab.configure(MOCKS, dialects=FINE)
        await lab.start_agent()
        await offered(lab, MEMORY, BOTH)
        for name in ("old", "older"):
            lab.create_pod(name, 4000)
            await lab.until_phase(name)
        given = {name: lab.env(name)["NVIDIA_VISIBLE_DEVICES"] for name in ("old", "older")}
        await lab.stop_agent(signal.SIGKILL)

        lab.configure(MOCKS, dialects=DRAINING)
        await lab.start_agent()
        # Of 55896 MiB, 8000 are held, all of the first GPU: 7360 and 40536 are left.
        await offered(lab, OURS, 28 + 158)
        await offered(lab, MEMORY, 8000)
        lab.create_pod("new", 100, resource=OURS)
        await lab.until_phase("new")
        await offered(lab, OURS, 28 + 158)
        await lab.cluster.kubelet.restart()
        await offered(lab, MEMORY, 8000)
        await lab.stop_agent(signal.SIGKILL)
        await lab.start_agent()
        await offered(lab, MEMORY, 8000)
        await offered(lab, OURS, 28 + 158)
        for name, gpu in given.items():
            assert lab.pod(name)["status"]["phase"] == "Running"
            assert lab.env(name)["NVIDIA_VISIBLE_DEVICES"] == gpu
        booked = sum(gpu.booked for gpu in (await lab.report()).gpus)
        assert booked == 8000 + 100 * 256

        # What ends gives its memory to the new one, and its ids to nobody.
        lab.delete_pod("old")
        await until(lambda: not lab.pod("old"), "the pod to go", 20)
        await offered(lab, MEMORY, 4000)
        await offered(lab, OURS, 44 + 158)
        lab.create_pod("late", 4000)
        await until(
            lambda: lab.pod("late").get("status", {}).get("phase") == "Failed", "it to be refused", 30
        )
        assert lab.pod("older")["status"]["phase"] == "Running"
        assert not lab.cluster.kubelet.panics


async def test_where_a_scheduler_books_every_pod_no_id_is_marked_for_it() -> None:
    """A pod with two GPUs holds ids for one: the kubelet counts more than is free, and no pod comes by that alone."""
    async with gpu_lab() as lab:
        lab.configure(MOCKS, dialects=COARSE, unassumed="refuse")
        await lab.start_agent()
        await offered(lab, OURS, 60 + 158)
        booked = {
            "colocate.dev/gpu-count": "2",
            "colocate.dev/gpu-uuid": f"{T4},{A100}",
            "colocate.dev/gpu-assume-time": "1",
        }
        lab.create_pod("pair", 40, resource=OURS, annotations=booked)
        await lab.until_phase("pair")
        await lab.until_annotated("pair", "colocate.dev/gpu-assigned", "true")
        assert [gpu.booked for gpu in (await lab.report()).gpus] == [40 * 256, 40 * 256]
        assert len(table(lab).healthy(OURS)) == 60 + 158


async def test_a_pod_that_has_no_node_is_explained() -> None:
    async with gpu_lab() as lab:
        lab.configure(MOCKS, dialects=FINE)
        await lab.start_agent()
        await offered(lab, MEMORY, BOTH)
        container = {"name": "main", "image": "x", "resources": {"limits": {MEMORY: "4Gi"}}}
        body = {"metadata": {"name": "bytes"}, "spec": {"containers": [container]}}
        lab.cluster.registry.create(PODS, "default", body)
        found = await control.ask(lab.socket, EXPLAIN, ExplainGpuPod("bytes"))
        assert found.sentences[0].startswith("It has no node yet")
        assert "4Gi is 4294967296 units of 1 MiB; write 4096." in found.sentences[1]
        with pytest.raises(UserError, match="there is no pod default/none on this node"):
            await control.ask(lab.socket, EXPLAIN, ExplainGpuPod("none"))


async def test_a_count_in_limits_is_named_in_an_event() -> None:
    async with gpu_lab() as lab:
        lab.configure(MOCKS, dialects=FINE)
        await lab.start_agent()
        await offered(lab, MEMORY, BOTH)
        lab.create_pod("pair", 100, limits={"doslab.io/gpu-count": "2"})
        await lab.until_phase("pair")
        await lab.until_told("pair", 'set the annotation colocate.dev/gpu-count: "2" in its place')


async def test_what_drains_is_announced_to_no_scheduler() -> None:
    async with gpu_lab() as lab:
        lab.configure(MOCKS, dialects=DRAINING)
        await lab.start_agent()
        await offered(lab, OURS, 60 + 158)
        report = await lab.report()
        assert [(each.resource, each.drains) for each in report.dialects] == [(OURS, False), (MEMORY, True)]
        announcement = await announced_by(lab)
        assert OURS in announcement
        assert MEMORY not in announcement


async def announced_by(lab: GpuLab) -> str:
    def said() -> str:
        node = lab.cluster.registry.find(NODES, "", MACHINE)
        return "" if node is None else (node.body["metadata"].get("annotations") or {}).get(ANNOUNCED, "")

    await until(lambda: OURS in said(), "the node's announcement", 20)
    return said()
