"""`colocate nri` with real containerds: every container's real cpuset is what `explain` says, and a switch keeps all.

The decisions are for a made machine; what is written is clipped to the CPUs and memory nodes that exist here.
TWO is made of as many CPUs as every machine has, in two CCXs on two NUMA nodes: its CPUs are real, its nodes are not.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
import grpc.aio
import pytest
from tests.support.containerd import Containerd, Kubelet, running
from tests.support.placement_processes import NriProcess, PlacingProcess, ProxyProcess

from colocate.model.cpuset import CpuSet

pytestmark = pytest.mark.needs("runc", "busybox", "containerd-1.7", "containerd-2.1")

TWO = "1x2x1x1x1"
REAL = CpuSet.of(os.sched_getaffinity(0))


class NriNode:
    """A containerd, and whoever places its containers."""

    def __init__(self, containerd: Containerd, placing: PlacingProcess, kubelet: Kubelet) -> None:
        self.containerd = containerd
        self.placing = placing
        self.kubelet = kubelet

    async def run(self, name: str, cpus: float, *, guaranteed: bool = False) -> str:
        """A pod with one container of the same name; returns the container's id."""
        sandbox = await self.kubelet.run_sandbox(name, qos="" if guaranteed else "burstable")
        container = await self.kubelet.create(sandbox, name, cpus=cpus, guaranteed=guaranteed)
        await self.kubelet.start(container)
        return container

    async def real(self, container: str) -> str:
        """The CPUs that the kernel gives it, once they are what `explain` says, clipped to what exists."""
        actual = said = None
        for _ in range(400):
            try:
                said = CpuSet.parse((await self.placing.explain(container)).container.cpus) & REAL or REAL
                actual = await self.kubelet.cpus_allowed(container)
            except grpc.aio.AioRpcError as error:  # the runtime has been away
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
            if actual is not None and actual == str(said):
                return actual
            await asyncio.sleep(0.05)
        raise AssertionError(f"{container} has {actual}, and explain says {said}")


@pytest.fixture(params=["1.7", "2.1"])
async def node(request: pytest.FixtureRequest) -> AsyncIterator[NriNode]:
    with TemporaryDirectory(prefix="ctrd") as folder:
        async with running(Path(folder), request.param, nri=True) as containerd:
            placing = NriProcess(containerd, TWO)
            await placing.start()
            async with Kubelet(containerd.socket, containerd.cgroup_parent) as kubelet:
                node = NriNode(containerd, placing, kubelet)
                try:
                    yield node
                finally:
                    node.placing.end(signal.SIGKILL)


async def test_containers_live_on_the_cpus_that_explain_says(node: NriNode) -> None:
    kubelet, placing = node.kubelet, node.placing
    shared = await node.run("shared", 0.5)
    assert await node.real(shared)
    alone = await node.run("alone", 1, guaranteed=True)
    own = await kubelet.cpus_allowed(alone)
    assert len(CpuSet.parse(own)) == 1
    assert own == await node.real(alone)
    assert (await placing.explain(alone)).container.mode == "exclusive"
    # The shared one gave way before the other was created.
    assert CpuSet.parse(await kubelet.cpus_allowed(shared)) == REAL - CpuSet.parse(own)
    # Resized in place, each keeps what it should have.
    await kubelet.resize(shared, 0.25)
    assert (await placing.explain(shared)).container.cpu == 250
    assert CpuSet.parse(await node.real(shared)) == REAL - CpuSet.parse(own)
    # One that restarts in its sandbox has its CPU again.
    [sandbox] = [each.pod_sandbox_id for each in await kubelet.containers() if each.id == alone]
    await kubelet.stop(alone)
    again = await kubelet.create(sandbox, "alone", cpus=1, guaranteed=True, attempt=1)
    await kubelet.remove(alone)
    await kubelet.start(again)
    assert await node.real(again) == own
    # What ends gives its CPUs back.
    await kubelet.stop_sandbox(sandbox)
    await until_only(placing, shared)
    assert await node.real(shared)
    await kubelet.remove_all()
    assert (await placing.status()).containers == ()


async def until_only(placing: PlacingProcess, *ids: str) -> None:
    async with asyncio.timeout(30):
        while {each.id for each in (await placing.status()).containers} != set(ids):  # noqa: ASYNC110 -- another process
            await asyncio.sleep(0.02)


async def test_a_strict_wish_that_cannot_be_had_fails_the_creation(node: NriNode) -> None:
    sandbox = await node.kubelet.run_sandbox("strict", annotations={"colocate.dev/cpus": "exclusive,strict"})
    with pytest.raises(grpc.aio.AioRpcError, match="strict"):
        await node.kubelet.create(sandbox, "strict", cpus=2, guaranteed=True)
    assert await node.kubelet.containers() == []
    assert await node.run("other", 1, guaranteed=True)


async def test_killed_and_started_again_each_finds_all_containers_as_they_were(node: NriNode) -> None:
    placing = node.placing
    alone = await node.run("alone", 1, guaranteed=True)
    shared = await node.run("shared", 0.5)
    had = [await node.real(container) for container in (alone, shared)]
    await asyncio.to_thread(node.containerd.kill)
    await placing.says("nri.disconnected")
    await node.containerd.start()
    await placing.says("nri.synchronized")
    assert [await node.real(container) for container in (alone, shared)] == had
    placing.end(signal.SIGKILL)
    # While the plugin is away a container goes, and another comes.
    await node.kubelet.stop(shared)
    await node.kubelet.remove(shared)
    stranger = await node.run("stranger", 0.5)
    await placing.start()
    assert await node.real(alone) == had[0]
    assert CpuSet.parse(await node.real(stranger)) == REAL - CpuSet.parse(had[0])
    assert placing.end() == 0, "and its containers stay as they are"
    assert await node.kubelet.cpus_allowed(alone) == had[0]


async def test_a_switch_between_the_two_ways_keeps_every_assignment(node: NriNode) -> None:
    alone = await node.run("alone", 1, guaranteed=True)
    shared = await node.run("shared", 0.5)
    sandbox = await node.kubelet.run_sandbox("pod")
    ended = await node.kubelet.create(sandbox, "ended", cpus=0.5)
    had = {each: await node.real(each) for each in (alone, shared)}
    before = {each.id: each.cpus for each in (await node.placing.status()).containers}

    second = NriProcess(node.containerd, TWO)
    second.log = node.containerd.folder / "second.log"
    with pytest.raises(AssertionError, match="another placer works with"):
        await second.start()

    node.placing.end()
    node.placing = proxy = ProxyProcess(node.containerd, TWO)
    await proxy.start()
    assert {each.id: each.cpus for each in (await proxy.status()).containers} == before
    assert {each: await node.real(each) for each in (alone, shared)} == had
    async with Kubelet(proxy.listen, node.containerd.cgroup_parent) as through:
        # What was begun by the one way goes on by the other.
        await through.start(ended)
        assert await node.real(ended)
        await through.stop(shared)
        comer = await through.run_sandbox("comer", qos="burstable")
        newcomer = await through.create(comer, "comer", cpus=0.5)
        await through.start(newcomer)
        await node.real(newcomer)

    between = {each.id: each.cpus for each in (await proxy.status()).containers if each.phase == "running"}
    proxy.end(signal.SIGKILL)
    node.placing = NriProcess(node.containerd, TWO)
    await node.placing.start()
    after = {
        each.id: each.cpus for each in (await node.placing.status()).containers if each.phase == "running"
    }
    assert after == between
    assert await node.real(alone) == had[alone]
    assert CpuSet.parse(await node.real(newcomer)).isdisjoint(CpuSet.parse(had[alone]))


async def test_a_reload_takes_the_new_policy(node: NriNode) -> None:
    alone = await node.run("alone", 1, guaranteed=True)
    assert await node.real(alone) != str(REAL)
    node.placing.configure(TWO, "  policy: none\n")
    node.placing.hang_up()
    await node.placing.says("config.reloaded")
    async with asyncio.timeout(30):
        while await node.kubelet.cpus_allowed(alone) != str(REAL):  # noqa: ASYNC110 -- another process
            await asyncio.sleep(0.02)
