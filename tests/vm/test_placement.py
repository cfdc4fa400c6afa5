"""Containers of a real containerd on real CCXs and NUMA nodes, through the CRI proxy: nothing here is made up.

For a sequence of creations, resizes and removals each container's effective cpuset and memory nodes are those of the
ladder, counted here from the topology that the VM was ordered with and not by the code under test.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from colocate.cpus.placer.part import PlacementPart
from colocate.cpus.placer.report import explanation_of
from colocate.cpus.placer.section import CpusSection
from colocate.cpus.placer.upkeep import Upkeep
from colocate.model.cpuset import CpuSet
from tests.placer.placing import PatientClock
from tests.support.containerd import Containerd, Kubelet, running
from tests.support.cri_proxies import proxying
from tests.support.waiting import until
from tests.vm.topology import Topology

pytestmark = [
    pytest.mark.vm("epyc", "epyc-smt", "partners"),
    pytest.mark.needs("containerd", "ctr", "runc", "busybox"),
    pytest.mark.timeout(900),
]

CGROUPS = Path("/sys/fs/cgroup")


class VmNode:
    """A kubelet's side of a proxy, and what the kernel says of its containers."""

    def __init__(self, part: PlacementPart, kubelet: Kubelet, topology: Topology) -> None:
        self.part = part
        self.kubelet = kubelet
        self.topology = topology
        self.sandboxes: dict[str, str] = {}

    async def run(self, name: str, cpus: float, *, guaranteed: bool = False) -> str:
        """A pod with one container; returns the container's id."""
        qos = "" if guaranteed else "burstable" if cpus else "besteffort"
        self.sandboxes[name] = await self.kubelet.run_sandbox(name, qos=qos)
        own = await self.kubelet.create(self.sandboxes[name], name, cpus=cpus, guaranteed=guaranteed)
        await self.kubelet.start(own)
        return own

    async def end(self, name: str) -> None:
        sandbox = self.sandboxes.pop(name)
        await self.kubelet.stop_sandbox(sandbox)
        await self.kubelet.remove_sandbox(sandbox)

    def cpus(self, own: str) -> frozenset[int]:
        return frozenset(CpuSet.parse((self.group(own) / "cpuset.cpus.effective").read_text()))

    def mems(self, own: str) -> frozenset[int]:
        return frozenset(CpuSet.parse((self.group(own) / "cpuset.mems.effective").read_text()))

    def group(self, own: str) -> Path:
        return next(path for path in CGROUPS.rglob(own) if path.is_dir())

    def explained(self, own: str) -> frozenset[int]:
        return frozenset(CpuSet.parse(explanation_of(self.part.placer, own).container.cpus))

    async def settled(self) -> None:
        await until(lambda: not self.part.placer.keeper.unwritten, "all is written", 60)


@asynccontextmanager
async def node(topology: Topology) -> AsyncIterator[VmNode]:
    with TemporaryDirectory(prefix="vm") as folder:
        async with running(Path(folder)) as containerd, proxied(containerd, topology) as made:
            yield made


@asynccontextmanager
async def proxied(containerd: Containerd, topology: Topology) -> AsyncIterator[VmNode]:
    """The proxy in this process: what another one's imports cost in a VM is saved."""
    folder = containerd.folder
    part = PlacementPart(
        CpusSection(
            state_folder=folder / "placement", socket=folder / "cpus.sock", wish_namespaces=("default",)
        ),
        PatientClock(),
    )
    part.begin()
    listen = folder / "proxy.sock"
    async with proxying(containerd.socket, listen, part.placer):
        work = asyncio.create_task(part.run())
        await until(lambda: part.placer.writer is not None, "a reconciliation", 60)
        async with Kubelet(listen, containerd.cgroup_parent) as kubelet:
            try:
                yield VmNode(part, kubelet, topology)
            finally:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)


def test_every_container_is_on_the_rung_of_the_ladder_that_fits(topology: Topology) -> None:
    asyncio.run(_climb(topology))


async def _climb(topology: Topology) -> None:
    ccx = topology.cpus // topology.ccxs
    numa = topology.cpus // topology.nodes
    ccxs = [topology.cpus_of_ccx(number) for number in range(topology.ccxs)]
    nodes = [topology.cpus_of_node(number) for number in range(topology.nodes)]
    everything = frozenset(range(topology.cpus))
    async with node(topology) as made:
        # Each rung alone on the machine.
        for name, cpus in (("a", ccx - 0.5), ("b", ccx), ("c", numa - 0.5), ("d", numa)):
            own = await made.run(name, cpus)
            assert made.cpus(own) in (ccxs if cpus <= ccx else nodes), name
            (home,) = made.mems(own)
            assert made.cpus(own) <= topology.cpus_of_node(home)
            assert made.cpus(own) == made.explained(own)
            await made.end(name)
        own = await made.run("numa and ccx", numa + ccx)
        pair = made.mems(own)
        one, other = sorted(pair)
        assert len(made.cpus(own)) == numa + ccx
        assert topology.distance(one, other) == nearest(topology, one)
        await made.end("numa and ccx")
        if topology.nodes_per_socket > 2:
            own = await made.run("two nodes", 2 * numa)
            one, other = sorted(made.mems(own))
            assert made.cpus(own) == nodes[one] | nodes[other]
            assert topology.distance(one, other) == nearest(topology, one)
            await made.end("two nodes")
        own = await made.run("most", topology.cpus - 0.5)
        assert made.cpus(own) == everything
        await made.end("most")
        # Together: CPUs of one's own, those that share beside them, and what is left over.
        idle = await made.run("idle", 0)
        assert made.cpus(idle) == everything
        alone = await made.run("alone", ccx, guaranteed=True)
        assert made.cpus(alone) in ccxs
        assert made.cpus(idle) == everything - made.cpus(alone)
        web = await made.run("web", ccx)
        assert made.cpus(web) in ccxs
        assert made.cpus(web).isdisjoint(made.cpus(alone))
        before = made.cpus(alone)
        await made.kubelet.resize(alone, 2 * ccx, guaranteed=True)
        assert len(made.cpus(alone)) == 2 * ccx
        assert before <= made.cpus(alone)
        assert made.cpus(alone).isdisjoint(made.cpus(web) | made.cpus(idle))
        assert made.cpus(alone) == made.explained(alone)
        await made.kubelet.resize(alone, ccx, guaranteed=True)
        assert made.cpus(alone) in ccxs
        await until(lambda: made.cpus(idle) == everything - made.cpus(alone), "what is free is shared", 60)
        # A restart in the sandbox: the same CPUs, and no other container has them in between.
        before = made.cpus(alone)
        await made.kubelet.stop(alone)
        await made.kubelet.remove(alone)
        other_one = await made.run("other", ccx, guaranteed=True)
        assert made.cpus(other_one).isdisjoint(before)
        alone = await made.kubelet.create(
            made.sandboxes["alone"], "alone", cpus=ccx, guaranteed=True, attempt=1
        )
        await made.kubelet.start(alone)
        assert made.cpus(alone) == before
        # Drift by hand.
        (made.group(alone) / "cpuset.cpus").write_text(str(CpuSet.of(made.cpus(web))))
        assert made.cpus(alone) == made.cpus(web)
        await Upkeep(made.part.placer).audit()
        assert made.cpus(alone) == before
        await made.end("alone")
        await made.end("other")
        await until(lambda: made.cpus(idle) == everything, "all of it is shared again", 60)


def nearest(topology: Topology, node: int) -> int:
    """The distance to the nearest other node with CPUs."""
    return min(topology.distance(node, other) for other in range(topology.nodes) if other != node)
