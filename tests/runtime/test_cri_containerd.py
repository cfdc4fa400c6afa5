"""`colocate cri-proxy` before a real containerd: every container's real cpuset is what `explain` says.

The decisions are for a made machine; what is written is clipped to the CPUs and memory nodes that exist here.
TWO is made of as many CPUs as every machine has, in two CCXs on two NUMA nodes: its CPUs are real, its nodes are not.
LARGE has 128 CPUs: what is said of them is not real, and what containers have of it is CPUs 0 and 1 at most.
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
from tests.support.containerd import VERSIONS, Containerd, Kubelet, running
from tests.support.placement_processes import ProxyProcess

from colocate.model.cpuset import CpuSet
from colocate.wire import cri_methods as methods
from colocate.wire import cri_pb2 as cri
from colocate.wire.rpc import is_served

pytestmark = pytest.mark.needs("runc", "busybox", *VERSIONS.values())

TWO = "1x2x1x1x1"
LARGE = "2x4x2x4x2"
REAL = CpuSet.of(os.sched_getaffinity(0))


class Node:
    def __init__(self, containerd: Containerd, proxy: ProxyProcess, kubelet: Kubelet) -> None:
        self.containerd = containerd
        self.proxy = proxy
        self.kubelet = kubelet

    async def run(self, name: str, cpus: float, *, guaranteed: bool = False) -> str:
        """A pod with one container of the same name; returns the container's id."""
        sandbox = await self.kubelet.run_sandbox(name, qos="" if guaranteed else "burstable")
        container = await self.kubelet.create(sandbox, name, cpus=cpus, guaranteed=guaranteed)
        await self.kubelet.start(container)
        return container

    async def has(self, *containers: str) -> None:
        """Return once these are all that the placer knows to run: events are told after the kubelet's answer."""
        for _ in range(200):
            found = [each.id for each in (await self.proxy.status()).containers if each.phase != "exited"]
            if sorted(found) == sorted(containers):
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"the placer knows {found}, and not {containers}")

    async def real(self, container: str) -> str:
        """The CPUs that the kernel gives it, once they are what `explain` says, clipped to what exists."""
        for _ in range(200):
            said = CpuSet.parse((await self.proxy.explain(container)).container.cpus) & REAL or REAL
            actual = await self.kubelet.cpus_allowed(container)
            if actual == str(said):
                return actual
            await asyncio.sleep(0.05)
        raise AssertionError(f"{container} has {actual}, and explain says {said}")


@pytest.fixture(params=VERSIONS)
async def node(request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    with TemporaryDirectory(prefix="ctrd") as folder:
        async with running(Path(folder), request.param) as containerd:
            proxy = ProxyProcess(containerd, TWO)
            await proxy.start()
            try:
                async with Kubelet(proxy.listen, containerd.cgroup_parent) as kubelet:
                    yield Node(containerd, proxy, kubelet)
            finally:
                proxy.end(signal.SIGKILL)


async def test_containers_live_on_the_cpus_that_explain_says(node: Node) -> None:
    kubelet, proxy = node.kubelet, node.proxy
    shared = await node.run("shared", 0.5)
    before = await node.real(shared)
    alone = await node.run("alone", 1, guaranteed=True)
    own = await kubelet.cpus_allowed(alone)
    assert own == await node.real(alone)
    assert len(CpuSet.parse(own)) == 1
    assert (await proxy.explain(alone)).container.mode == "exclusive"
    # The shared one gave way before the other was created.
    assert await kubelet.cpus_allowed(shared) == await node.real(shared)
    assert CpuSet.parse(await node.real(shared)) == REAL - CpuSet.parse(own)
    # Resized in place, each keeps what it should have.
    await kubelet.resize(shared, 0.25)
    assert (await proxy.explain(shared)).container.cpu == 250
    assert CpuSet.parse(await node.real(shared)) == REAL - CpuSet.parse(own)
    # What is stopped and removed gives its CPUs back.
    await kubelet.stop(alone)
    await kubelet.remove(alone)
    await node.has(shared)
    await kubelet.remove_all()
    await node.has()
    assert before


async def test_an_init_container_hands_its_cpus_on(node: Node) -> None:
    kubelet = node.kubelet
    sandbox = await kubelet.run_sandbox("pod")
    first = await kubelet.create(sandbox, "init", cpus=1, guaranteed=True, command=["/bin/busybox", "true"])
    own = (await node.proxy.explain(first)).container.cpus
    await kubelet.start(first)
    async with asyncio.timeout(20):
        while (await kubelet.containers())[0].state != cri.CONTAINER_EXITED:  # noqa: ASYNC110 -- as a kubelet does
            await asyncio.sleep(0.02)
    main = await kubelet.create(sandbox, "main", cpus=1, guaranteed=True)
    await kubelet.start(main)
    assert await node.real(main) == own


async def test_a_kubelet_that_follows_events_gets_them_and_the_end_of_a_container_is_seen_in_them(
    node: Node,
) -> None:
    stream = node.kubelet.channel.unary_stream(methods.CONTAINER_EVENTS)(b"")
    if node.containerd.version == "1.6":
        assert await stream.code() is grpc.StatusCode.UNIMPLEMENTED
        return
    sandbox = await node.kubelet.run_sandbox("pod")
    job = await node.kubelet.create(sandbox, "job", cpus=0.5, command=["/bin/busybox", "true"])
    await node.kubelet.start(job)
    async with asyncio.timeout(20):
        while True:
            event = cri.ContainerEventResponse.FromString(await stream.read())
            if (event.container_id, event.container_event_type) == (job, cri.CONTAINER_STOPPED_EVENT):
                break
    await node.has()
    assert not stream.done()
    stream.cancel()


async def test_killed_and_started_again_each_finds_all_containers_as_they_were(node: Node) -> None:
    kubelet, proxy = node.kubelet, node.proxy
    alone = await node.run("alone", 1, guaranteed=True)
    shared = await node.run("shared", 0.5)
    had = [await node.real(container) for container in (alone, shared)]
    node.containerd.kill()
    await proxy.says("cri_proxy.runtime_lost")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await kubelet.containers()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    await node.containerd.start()
    await proxy.says("cri_proxy.reconciled")
    assert [await node.real(container) for container in (alone, shared)] == had
    proxy.end(signal.SIGKILL)
    assert proxy.listen.exists()
    assert not is_served(proxy.listen)
    # While the proxy is away a container goes, and another comes, behind its back.
    async with Kubelet(node.containerd.socket, node.containerd.cgroup_parent) as behind:
        await behind.stop(shared)
        await behind.remove(shared)
        sandbox = await behind.run_sandbox("stranger", qos="burstable")
        stranger = await behind.create(sandbox, "stranger", cpus=0.5)
        await behind.start(stranger)
    await proxy.start()
    assert await node.real(alone) == had[0]
    assert CpuSet.parse(await node.real(stranger)) == REAL - CpuSet.parse(had[0])
    await node.has(alone, stranger)
    assert proxy.end() == 0
    assert not proxy.listen.exists()


async def test_what_the_runtime_says_of_itself_comes_through(node: Node) -> None:
    async with Kubelet(node.containerd.socket, "") as direct:
        for path in (methods.VERSION.path, f"{methods.RUNTIME}Status", f"{methods.IMAGE}ListImages"):
            through = await node.kubelet.channel.unary_unary(path)(b"")
            assert len(through) == len(await direct.channel.unary_unary(path)(b""))
    unknown = node.kubelet.channel.unary_unary(f"{methods.RUNTIME}FromTheFuture")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await unknown(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("node", ["1.6"], indirect=True)
async def test_the_socket_is_as_accessible_as_the_runtimes(node: Node) -> None:
    theirs, ours = node.containerd.socket.stat(), node.proxy.listen.stat()
    assert (ours.st_mode, ours.st_uid, ours.st_gid) == (theirs.st_mode, theirs.st_uid, theirs.st_gid)
    node.containerd.socket.chmod(0o666)
    node.proxy.end()
    await node.proxy.start()
    assert node.proxy.listen.stat().st_mode & 0o777 == 0o666


@pytest.mark.parametrize("node", ["1.6"], indirect=True)
async def test_a_reload_takes_the_new_policy_and_refuses_a_bad_one(node: Node) -> None:
    alone = await node.run("alone", 1, guaranteed=True)
    assert await node.real(alone) != str(REAL)
    node.proxy.configure(TWO, "  policy: wrong\n")
    node.proxy.hang_up()
    await node.proxy.says("config.refused")
    node.proxy.configure(TWO, "  policy: none\n")
    node.proxy.hang_up()
    await node.proxy.says("config.reloaded")
    for _ in range(200):
        if await node.kubelet.cpus_allowed(alone) == str(REAL):
            break
        await asyncio.sleep(0.05)
    assert await node.kubelet.cpus_allowed(alone) == str(REAL)


@pytest.mark.parametrize("node", ["1.6"], indirect=True)
async def test_a_strict_wish_that_cannot_be_had_is_told_to_the_kubelet(node: Node) -> None:
    sandbox = await node.kubelet.run_sandbox("strict", annotations={"colocate.dev/cpus": "exclusive,strict"})
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await node.kubelet.create(sandbox, "strict", cpus=2, guaranteed=True)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert await node.kubelet.containers() == []


@pytest.mark.parametrize("node", ["1.6"], indirect=True)
async def test_a_large_machine_is_decided_for_and_clipped_to_what_exists(node: Node) -> None:
    node.proxy.end()
    node.proxy.configure(LARGE, f"  reservedCpus: ''\n  stateFolder: {node.containerd.folder}/large\n")
    node.proxy.config.write_text(
        node.proxy.config.read_text().replace(f"  stateFolder: {node.containerd.folder}/placement\n", "")
    )
    await node.proxy.start()
    quarter = await node.run("ccx", 8, guaranteed=True)
    half = await node.run("numa", 16, guaranteed=True)
    said = [CpuSet.parse((await node.proxy.explain(each)).container.cpus) for each in (quarter, half)]
    assert [len(cpus) for cpus in said] == [8, 16]
    assert said[0].isdisjoint(said[1])
    for container in (quarter, half):
        await node.real(container)
