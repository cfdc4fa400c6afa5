"""Tenants who fill the API with large pods or with seals: the memory of the agent stays bounded."""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
import yaml

from colocate.gpus import SEAL
from colocate.model import quantity
from tests.gpu_agent.lab import A100, T4, GpuLab, gpu_lab
from tests.gpu_agent.test_gpu_agent import started
from tests.gpu_agent.test_tenants import InnerAgent
from tests.gpus.node import KEY
from tests.support.hostile_api import hostile_api
from tests.support.waiting import until

MIRROR = "kubernetes.io/config.mirror"
DAEMON_SET = Path(__file__).parents[2] / "examples/gpus/daemonset.yaml"
PODS = 850
LONG = 250 << 10
"""Characters; the API allows 256 KiB for all annotations of a pod together."""


def memory_limit() -> int:
    documents = yaml.safe_load_all(DAEMON_SET.read_text())
    daemon_set = next(each for each in documents if each["kind"] == "DaemonSet")
    container = daemon_set["spec"]["template"]["spec"]["containers"][0]
    return quantity.whole(container["resources"]["limits"]["memory"])


def most_memory(lab: GpuLab) -> int:
    """Bytes that the agent had resident at most."""
    assert lab.agent is not None
    status = Path(f"/proc/{lab.agent.pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))


@pytest.mark.parametrize("key", ["example.com/anything", "doslab.io/gpu-uuid"])
async def test_850_pods_with_all_the_annotations_that_the_api_allows_fit_below_the_daemonsets_limit(
    key: str,
) -> None:
    async with gpu_lab() as lab:
        for number in range(PODS):
            # The kubelet runs no mirror, and it does not end: nothing but the agent's own bounds is in the way.
            lab.create_pod(
                f"large-{number}", 0, annotations={MIRROR: "none", key: f"{number} " * (LONG // 5)}
            )
            await asyncio.sleep(0)
        for life in ("first", "second"):
            await started(lab)
            lab.create_pod(life, 60, annotations={"doslab.io/gpu-uuid": T4})
            await lab.until_phase(life)
            assert most_memory(lab) < memory_limit() * 3 // 4
            assert await lab.stop_agent() == 0


def seal_of(agent: InnerAgent, uid: str) -> str | None:
    """As the agent's watch has told."""
    pod = (agent.pods.pods or {}).get(uid)
    return None if pod is None else pod.annotations.get(SEAL)


async def test_a_seal_that_is_stripped_right_after_the_bind_counts() -> None:
    """The watch delivers the booking and its end between two settlements."""
    async with gpu_lab() as lab, InnerAgent(lab).running() as agent:
        agent.allocator.settings = msgspec.structs.replace(agent.allocator.settings, keys=(KEY,))
        release = lab.hold_back("victim")
        agent.client.watching.clear()
        uid = lab.create_pod("victim", 4)
        lab.book("victim", T4)
        lab.annotate("victim", {SEAL: "", "doslab.io/gpu-uuid": A100})
        agent.client.watching.set()
        await until(lambda: seal_of(agent, uid) == "", "the watch to tell of it")
        release()
        await lab.until_phase("victim")
        assert lab.env("victim")["NVIDIA_VISIBLE_DEVICES"] == T4


async def test_a_tenant_who_writes_seals_without_end_fills_no_memory() -> None:
    async with gpu_lab() as lab, InnerAgent(lab).running() as agent:
        uid = lab.create_pod("p", 4)
        lab.book("p", T4)
        first = lab.annotations("p")
        for number in range(100):
            lab.annotate("p", {SEAL: f"{number}:00"})
        await until(lambda: seal_of(agent, uid) == "99:00", "the watch to tell of it")
        kept = [pod.annotations[SEAL] for pod in agent.pods.sealed_states]
        assert kept == [first[SEAL], "97:00", "98:00", "99:00"]
        lab.delete_pod("p")
        await until(lambda: not agent.pods.sealed_states, "its end to be heard")


async def endless_pages(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Lists that are valid in every page, and never end."""
    written = 0
    while True:
        await reader.readuntil(b"\r\n\r\n")
        items = []
        written += 500
        for number in range(written - 500, written):
            marks = {"name": f"p{number}", "namespace": "d", "uid": f"u{number}", "resourceVersion": "1"}
            items.append({"metadata": {**marks, "annotations": {"doslab.io/gpu-uuid": "x" * 400}}})
        body = json.dumps({"metadata": {"resourceVersion": "1", "continue": "more"}, "items": items}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()


async def test_a_valid_list_that_never_ends_is_given_up() -> None:
    async with gpu_lab() as lab, hostile_api(endless_pages, lab.root / "hostile"):
        lab.configure(kubeconfig=str(lab.root / "hostile"))
        await lab.start_agent()
        await until(lambda: "the list has more than 10000 objects" in lab.log(), "the agent to give up", 60)
        assert most_memory(lab) < memory_limit() * 3 // 4
        assert await lab.stop_agent() == 0
