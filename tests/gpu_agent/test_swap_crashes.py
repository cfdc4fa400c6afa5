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
from tests.gpu_agent.lab import MEMORY, MOCKS, GpuLab, gpu_lab
from tests.support.waiting import until

KEY = b"a key of agents and scheduler"
GPUS = ("GPU-aaaa", "GPU-bbbb")
INVENTORY = GpuInventory(tuple(Gpu(uuid=uuid, index=n, memory=160) for n, uuid in enumerate(GPUS)))
POINTS = 24
"""Side effects from the start of the agent until both pods run and are written back; more than there are."""
FEW = POINTS // 2
"""Pods, of two for each point, for which the kubelet asks while the agent dies: they fail, as with any plugin."""


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
    killed, failed = 0, 0
    async with gpu_lab() as lab:
        lab.configure(
            [{**MOCKS[0], "memory": "160Mi", "uuid": uuid} for uuid in GPUS],
            keyFile=str(tmp_path / "key"),
            dialects=[{"name": "doslab"}],
        )
        for point in range(1, POINTS):
            monkeypatch.setenv("COLOCATE_CRASH_AT", str(point))
            revived_before = revivals(lab)
            names = [f"p{point}-{each}" for each in range(2)]
            failed += await swapped_pair(lab, monkeypatch, names, point)
            killed += revivals(lab) > revived_before + 1
            for name in names:
                lab.delete_pod(name)
            await until(lambda names=names: not any(lab.pod(name) for name in names), "them to go", 30)  # type: ignore[misc]
            if lab.agent is not None:
                await lab.stop_agent(signal.SIGKILL)
    assert killed > POINTS // 2
    assert failed <= FEW
    assert "condemned" not in lab.log()


async def swapped_pair(lab: GpuLab, monkeypatch: pytest.MonkeyPatch, names: list[str], point: int) -> int:
    """The kubelet asks for the second first; the agent dies somewhere, and its successor has no such orders.

    How many of the pods failed, because the agent died while the kubelet waited for it.
    """
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
    for name in reversed(names):
        await serving(lab)
        admit(held[name])
        await until(lambda name=name: is_dead(lab) or bool(answered(lab, name)), "an answer or an end", 30)  # type: ignore[misc]

    def decided() -> bool:
        phases = [lab.pod(name)["status"].get("phase") for name in names]
        return all(phase in (Phase.RUNNING, Phase.FAILED) for phase in phases)

    await until(lambda: decided() or is_dead(lab), "both to be decided, or an end", 30)
    await serving(lab)
    await until(decided, "both to be decided", 60)
    has, failed = [], 0
    for name in names:
        status = lab.pod(name)["status"]
        told = [event for event in lab.events(name) if "must not start" in event or "has no" in event]
        assert not told, told
        if status["phase"] == Phase.FAILED:
            why = status.get("message", "")
            assert any(words in why for words in ("plugin", "rpc", "no healthy devices")), status
            failed += 1
        else:
            has.append(lab.env(name)["NVIDIA_VISIBLE_DEVICES"])
    assert set(has) <= set(GPUS)
    assert len(set(has)) == len(has), "two pods of 100 MiB on one GPU of 160"
    return failed


def is_dead(lab: GpuLab) -> bool:
    return lab.agent is None or lab.agent.returncode is not None


def answered(lab: GpuLab, name: str) -> str:
    """The GPU that the kubelet was told for a pod, or that it has failed."""
    if lab.pod(name)["status"].get("phase") == Phase.FAILED:
        return "none"
    return lab.env(name).get("NVIDIA_VISIBLE_DEVICES", "")


async def serving(lab: GpuLab) -> None:
    """An agent that lives, and whose devices the kubelet has."""

    def shown() -> bool:
        return is_dead(lab) or len(lab.cluster.kubelet.devices.table.healthy(MEMORY)) == 320

    await until(shown, "the agent to serve or to end", 30)
    if is_dead(lab):
        await revived(lab)


def revivals(lab: GpuLab) -> int:
    """Agents that were started in all."""
    return lab.log().count('"agent.started"')


async def revived(lab: GpuLab) -> None:
    assert "COLOCATE_CRASH_AT" not in os.environ
    if lab.agent is not None:
        await lab.agent.wait()
        lab.agent = None
    await lab.start_agent()
    await lab.shows(320, 2)
