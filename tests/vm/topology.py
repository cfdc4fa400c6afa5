"""What hardware a VM shows, as data, and the arguments that make QEMU and the kernel show it. Nothing runs here.

The CPUs are those of an EPYC: a CCX is a group of cores that share an L3 cache. QEMU's word for it is a die.
Every topology also has a pool: a NUMA node of memory without CPUs, farther away than any other, as CXL memory is.
"""

from collections.abc import Iterator

import msgspec

HERE, PARTNER, SAME_SOCKET, OTHER_SOCKET, POOL = 10, 11, 12, 32, 50
"""Distances between NUMA nodes, as the firmware tells them."""

_LOW_MIB = 1024
_HIGH_START_MIB = 4096
# Physical memory: 1 GiB from 0, the rest from 4 GiB on; what lies between belongs to devices.

MACHINE = f"q35,max-ram-below-4g={_LOW_MIB}M"

# TCG knows no topoext, by which the kernel learns the L3 groups: it is forced, and what else TCG lacks of this
# CPU is switched off, or the kernel would use it.
_LACKING_IN_TCG = (
    *(
        "rdseed",
        "sha-ni",
        "rdpid",
        "fxsr-opt",
        "misalignsse",
        "3dnowprefetch",
        "osvw",
        "perfctr-core",
        "clzero",
    ),
    *("xsaveerptr", "wbnoinvd", "ibpb", "amd-stibp", "nrip-save", "xsavec", "xsaves", "svm"),
)
CPU = {
    "kvm": "EPYC-Rome",
    "tcg": ",".join(["EPYC-Rome", "x-force-features=on", *(f"-{feature}" for feature in _LACKING_IN_TCG)]),
}
"""By accelerator. The family matters: on this one the kernel takes L3 groups from the CPU's own description."""


class Topology(msgspec.Struct, frozen=True):
    """Sockets of NUMA nodes of CCXs of cores of threads, numbered in this order, and a pool."""

    name: str
    sockets: int
    nodes_per_socket: int
    ccxs_per_node: int
    cores_per_ccx: int
    threads_per_core: int
    pool_mib: int
    node_mib: int = 1024
    partners: bool = False
    """Every node has another one of its socket that is nearer than the rest: not the one next to it."""

    @property
    def nodes(self) -> int:
        """NUMA nodes with CPUs; the pool is the one after them."""
        return self.sockets * self.nodes_per_socket

    @property
    def pool(self) -> int:
        """The number of the pool's NUMA node."""
        return self.nodes

    @property
    def ccxs(self) -> int:
        return self.nodes * self.ccxs_per_node

    @property
    def cpus(self) -> int:
        return self.ccxs * self.cores_per_ccx * self.threads_per_core

    def cpus_of_ccx(self, ccx: int) -> frozenset[int]:
        size = self.cpus // self.ccxs
        return frozenset(range(ccx * size, (ccx + 1) * size))

    def cpus_of_node(self, node: int) -> frozenset[int]:
        size = self.cpus // self.nodes
        return frozenset(range(node * size, (node + 1) * size)) if node != self.pool else frozenset()

    def cpus_of_core(self, cpu: int) -> frozenset[int]:
        """The threads of the core that this CPU is a thread of."""
        first = cpu - cpu % self.threads_per_core
        return frozenset(range(first, first + self.threads_per_core))

    def socket_of(self, node: int) -> int:
        return node // self.nodes_per_socket

    def distance(self, one: int, other: int) -> int:
        if one == other:
            return HERE
        if self.pool in (one, other):
            return POOL
        if self.partners and one ^ other == 2:
            return PARTNER
        return SAME_SOCKET if self.socket_of(one) == self.socket_of(other) else OTHER_SOCKET

    def qemu_arguments(self) -> list[str]:
        """CPUs, memory and NUMA nodes."""
        dies = self.nodes_per_socket * self.ccxs_per_node
        shape = (
            f"sockets={self.sockets},dies={dies},cores={self.cores_per_ccx},threads={self.threads_per_core}"
        )
        memory = [*[self.node_mib] * self.nodes, self.pool_mib]
        return [
            *["-smp", f"{self.cpus},{shape}", "-m", f"{sum(memory)}M"],
            *(text for node, mib in enumerate(memory) for text in _memory(node, mib)),
            *(text for ccx in range(self.ccxs) for text in self._placed(ccx, dies)),
            *(text for pair in self._pairs() for text in self._apart(*pair)),
        ]

    def kernel_arguments(self) -> list[str]:
        """Keeps the pool out of the kernel's hands at boot: it is added while the kernel runs, as CXL memory is."""
        start = _HIGH_START_MIB - _LOW_MIB + self.nodes * self.node_mib
        # Turns "usable" into "soft reserved", the firmware's word for memory of a special purpose.
        return [f"memmap={self.pool_mib}M%{start}M-1+0xefffffff", "memhp_default_state=online_movable"]

    def _placed(self, ccx: int, dies: int) -> list[str]:
        place = f"node-id={ccx // self.ccxs_per_node},socket-id={ccx // dies},die-id={ccx % dies}"
        return ["-numa", f"cpu,{place}"]

    def _pairs(self) -> Iterator[tuple[int, int]]:
        return ((one, other) for one in range(self.nodes) for other in range(one + 1, self.pool + 1))

    def _apart(self, one: int, other: int) -> list[str]:
        return ["-numa", f"dist,src={one},dst={other},val={self.distance(one, other)}"]


def _memory(node: int, mib: int) -> list[str]:
    backend = f"memory-backend-ram,id=memory{node},size={mib}M"
    return ["-object", backend, "-numa", f"node,nodeid={node},memdev=memory{node}"]


TOPOLOGIES = {
    topology.name: topology
    for topology in (
        Topology("mini", 1, 2, 1, 1, 1, pool_mib=512),
        Topology("small", 1, 2, 2, 1, 1, pool_mib=512),
        Topology("epyc", 2, 2, 2, 2, 1, pool_mib=1024),
        Topology("epyc-smt", 2, 2, 2, 1, 2, pool_mib=1024),
        Topology("partners", 1, 4, 2, 2, 1, pool_mib=512, partners=True),
    )
}
"""mini boots fastest; small has two CCXs on each node; epyc has two sockets, epyc-smt two threads per core;
partners has one socket of four nodes, of which 0 and 2, and 1 and 3, are nearer to each other than to the rest."""
