"""What a tenant with rights in his own namespace does to the bookings of a running scheduler: nothing comes of it."""

from collections.abc import Mapping
from contextlib import AsyncExitStack

import pytest

from colocate.cluster.resources import NODES, PODS
from colocate.gpus import ANNOUNCED, SEAL, AnnouncedPod, GpuRoom, announcement_of
from colocate.scheduler.process import SchedulerProcess
from tests.gpu_scheduler.clusters import SIZE, GpuLab, gpu_lab, gpu_pod, gpus, uuid
from tests.support.waiting import until

ATTACKS: Mapping[str, Mapping[str, str]] = {
    "600 characters of models": {"colocate.dev/gpu-models": "m" * 600},
    "another GPU": {"doslab.io/gpu-uuid": "GPU-none"},
    "no seal": {SEAL: "", "doslab.io/gpu-uuid": ""},
    "another set": {"DOSLAB_IO_GPU_UUID": "GPU-none", "doslab.io/gpu-uuid": ""},
    "a wish of GPUs": {"colocate.dev/gpu-count": "64"},
}


async def annotate(lab: GpuLab, name: str, annotations: Mapping[str, str]) -> None:
    await lab.client.patch(PODS, name, {"metadata": {"annotations": dict(annotations)}}, "default")


async def heard(process: SchedulerProcess, uid: str, annotations: Mapping[str, str]) -> None:
    """Wait until the scheduler has seen them."""
    assert process.gpus is not None
    pods = process.gpus.feed.pods

    def seen() -> bool:
        (pod,) = (each for each in pods if each.uid == uid)
        return all(pod.annotations.get(name, "")[:500] == text[:500] for name, text in annotations.items())

    await until(seen, "the scheduler to hear of it")


def used(process: SchedulerProcess) -> dict[str, int]:
    assert process.gpus is not None
    return {gpu: room.memory for gpu, room in process.gpus.book.books["a"].used.items()}


async def tell(lab: GpuLab, *absent: str, **pods: AnnouncedPod) -> None:
    """What the node's agent announces."""
    text = announcement_of(gpus("a", 2), {"doslab.io/gpu-memory": 1}, pods, absent)
    await lab.client.patch(NODES, "a", {"metadata": {"annotations": {ANNOUNCED: text}}})


def has(gpu: str, number: int = 1, memory: int = SIZE) -> AnnouncedPod:
    return AnnouncedPod(rooms={gpu: GpuRoom(memory, 0)}, number=number, settled=True)


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
@pytest.mark.parametrize("told", [False, True], ids=["before the agent speaks", "after"])
async def test_nobody_else_is_booked_onto_a_gpu_whose_pod_was_changed(
    attack: Mapping[str, str], told: bool
) -> None:
    async with gpu_lab(("a", 2)) as lab, AsyncExitStack() as stack:
        process = await stack.enter_async_context(lab.scheduling())
        await tell(lab)
        await lab.create(gpu_pod("victim", SIZE))
        (victim,) = await lab.bound("victim")
        if told:
            await tell(lab, **{victim.uid: has(victim.gpus)})
        await annotate(lab, "victim", attack)
        if told:
            # Another process knows nothing of its own, and reads the changed pod.
            await stack.aclose()
            process = await stack.enter_async_context(lab.scheduling())
        await heard(process, victim.uid, attack)
        assert used(process) == {victim.gpus: SIZE}
        await lab.create(gpu_pod("second", SIZE))
        (second,) = await lab.bound("second")
        assert second.gpus != victim.gpus


@pytest.mark.parametrize("restart", [False, True])
async def test_a_seal_of_before_a_swap_is_worth_nothing_before_and_after_a_restart(restart: bool) -> None:
    """Saved by a tenant and written back, it would say that the GPU of another is his, and his own is free."""
    async with gpu_lab(("a", 2)) as lab, AsyncExitStack() as stack:
        await stack.enter_async_context(lab.scheduling())
        await tell(lab)
        await lab.create(gpu_pod("mine", SIZE))
        (mine,) = await lab.bound("mine")
        other = ({uuid("a", 0), uuid("a", 1)} - {mine.gpus}).pop()
        saved = dict(mine.annotations)
        number = int(saved["doslab.io/gpu-assume-time"]) + 1
        await tell(lab, **{mine.uid: has(other, number)})
        await annotate(lab, "mine", {"doslab.io/gpu-uuid": other, "doslab.io/gpu-assume-time": str(number)})
        await annotate(lab, "mine", saved)
        if restart:
            await stack.aclose()
            await stack.enter_async_context(lab.scheduling())
        await lab.create(gpu_pod("second", SIZE))
        (second,) = await lab.bound("second")
        assert second.gpus == mine.gpus, "the GPU that is free by the agent's word"


async def test_pods_that_never_run_keep_nobody_waiting() -> None:
    """Bound by their own spec.nodeName: each counts once, until the agent says that its kubelet does not run them."""
    async with gpu_lab(("a", 2)) as lab, lab.scheduling() as process:
        await tell(lab)
        await lab.create(gpu_pod("ghost", 6 * SIZE // 10, nodeName="a"))
        await until(lambda: sum(used(process).values()) == 6 * SIZE // 10, "it to count once")
        await lab.create(gpu_pod("first", SIZE))
        (first,) = await lab.bound("first")
        await tell(lab, lab.pod("ghost").uid, **{first.uid: has(first.gpus)})
        await until(lambda: used(process) == {first.gpus: SIZE}, "it to count no more")
