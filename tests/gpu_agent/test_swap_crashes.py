"""An agent that is killed at any of its side effects while equal pods start in another order than they were booked:
neither is refused or condemned by its successor."""

import os
import signal
from pathlib import Path

import msgspec
import pytest

from colocate.gpus import DOSLAB, SEAL, GpuPod, annotations_for, asks_of, seal
from colocate.lab.api.resources import PODS as LAB_PODS
from colocate.model.gpu import Gpu, GpuInventory
from colocate.model.pod import Phase, Pod
from tests.gpu_agent.lab import MOCKS, GpuLab, gpu_lab
from tests.support.waiting import until

KEY = b"a key of agents and scheduler"
GPUS = ("GPU-aaaa", "GPU-bbbb")
INVENTORY = GpuInventory(tuple(Gpu(uuid=uuid, index=n, memory=160) for n, uuid in enumerate(GPUS)))
POINTS = 24
"""Side effects from the start of the agent until both pods run and are written back; more than there are."""


def book(lab: GpuLab, name: str, gpu: str, number: int) -> None:
    """As the scheduler does: annotations with a seal, over the pod's uid."""
    body = lab.pod(name)
    pod = msgspec.convert(body, GpuPod)
    asks = asks_of(pod, DOSLAB).containers
    said = dict(annotations_for(DOSLAB, DOSLAB.annotations[0], asks, [(gpu,)], INVENTORY, assume_time=number))
    said[SEAL] = seal(pod.uid, DOSLAB, asks, [(gpu,)], number, KEY)

    def change(stored: dict[str, object]) -> None:
        stored["metadata"].setdefault("annotations", {}).update(said)  # type: ignore[attr-defined]

    lab.cluster.registry.modify(LAB_PODS, "default", name, change)


@pytest.mark.timeout(900)
async def test_killed_at_any_side_effect_the_agent_goes_on_with_two_equal_pods(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "key").write_bytes(KEY + b"\n")
    reached = 0
    async with gpu_lab() as lab:
        lab.configure(
            [{**MOCKS[0], "memory": "160Mi", "uuid": uuid} for uuid in GPUS],
            keyFile=str(tmp_path / "key"),
            dialects=[{"name": "doslab"}],
        )
        for point in range(3, POINTS, 3):
            monkeypatch.setenv("COLOCATE_CRASH_AT", str(point))
            names = [f"p{point}-{each}" for each in range(2)]
            await swapped_pair(lab, monkeypatch, names, point)
            reached += 1
            for name in names:
                lab.delete_pod(name)
            await until(lambda names=names: not any(lab.pod(name) for name in names), "them to go", 30)  # type: ignore[misc]
            if lab.agent is not None:
                await lab.stop_agent(signal.SIGKILL)
    assert reached
    assert "condemned" not in lab.log()


async def swapped_pair(lab: GpuLab, monkeypatch: pytest.MonkeyPatch, names: list[str], point: int) -> None:
    """The kubelet asks for the second first; the agent dies somewhere, and its successor has no such orders."""
    await lab.start_agent()
    monkeypatch.delenv("COLOCATE_CRASH_AT")
    admit = lab.cluster.kubelet.add_pod
    held: dict[str, Pod] = {}

    def hold_back(pod: Pod) -> None:
        held[pod.metadata.name] = pod

    monkeypatch.setattr(lab.cluster.kubelet, "add_pod", hold_back)
    for number, name in enumerate(names):
        lab.create_pod(name, 100)
        book(lab, name, GPUS[number], 100 * point + number + 1)
    await until(lambda: len(held) == 2, "the kubelet to hear of both", 30)
    monkeypatch.setattr(lab.cluster.kubelet, "add_pod", admit)
    if lab.agent is not None and lab.agent.returncode is None:
        try:
            await lab.shows(320, 2)
        except AssertionError:
            pass
    for name in reversed(names):
        if lab.agent is None or lab.agent.returncode is not None:
            await revived(lab)
        admit(held[name])

    def decided() -> bool:
        phases = [lab.pod(name)["status"].get("phase") for name in names]
        return all(phase in (Phase.RUNNING, Phase.FAILED) for phase in phases)

    for _ in range(3):
        if lab.agent is None or lab.agent.returncode is not None:
            await revived(lab)
        try:
            await until(decided, "both to be decided", 20)
            break
        except AssertionError:
            continue
    for name in names:
        status = lab.pod(name)["status"]
        told = [event for event in lab.events(name) if "must not start" in event or "has no" in event]
        assert not told, told
        if status["phase"] == Phase.FAILED:
            # Asked for while nobody answered, as with any device plugin.
            why = status.get("message", "")
            assert any(words in why for words in ("plugin", "rpc", "no healthy devices")), status
        else:
            has = lab.env(name)["NVIDIA_VISIBLE_DEVICES"]
            assert has in GPUS


async def revived(lab: GpuLab) -> None:
    assert "COLOCATE_CRASH_AT" not in os.environ
    if lab.agent is not None:
        await lab.agent.wait()
        lab.agent = None
    await lab.start_agent()
    await lab.shows(320, 2)
