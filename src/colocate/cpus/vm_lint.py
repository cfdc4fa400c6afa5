"""What makes placement blind in a virtual machine, and the lines of libvirt that mend it.

From the topology that the machine sees; with its host's topology and its libvirt domain, also whether virtual CPUs
sit on the threads, cores and CCXs that they claim to be. Nothing is changed.
"""

from collections.abc import Iterator

import msgspec

from colocate.cpus.pools import PoolTree
from colocate.model.cpu_topology import CpuTopology, VirtualDomain
from colocate.model.cpuset import CpuSet

PASSTHROUGH = (
    "<cpu mode='host-passthrough' check='none' migratable='on'>",
    "  <cache mode='passthrough'/>",
    "  <feature policy='require' name='topoext'/>",
    "</cpu>",
)


class TopologyFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong, and what to do about it."""

    code: str
    sentence: str
    remedy: str
    lines: tuple[str, ...] = ()
    """Of the libvirt domain."""


def lint_vm(
    guest: CpuTopology, host: CpuTopology | None = None, domain: VirtualDomain | None = None
) -> tuple[TopologyFinding, ...]:
    """Everything that is found."""
    return (
        *_doubts(guest),
        *_l3_of(guest, host),
        *_processor(guest),
        *(_domain(domain, host) if domain else ()),
        *(_shape(guest, host) if host else ()),
        *(_pins(guest, host, domain) if host and domain else ()),
    )


def libvirt_lines(count: int, host: CpuTopology) -> tuple[str, ...]:
    """A domain of so many virtual CPUs on the first NUMA nodes of a host that hold them.

    Threads of a core come one after the other, as QEMU numbers them, and cores of a CCX too.
    """
    tree = PoolTree(host)
    ordered = sorted(tree.cells, key=lambda cell: (cell.socket, cell.node, cell.mask & -cell.mask))
    cores = [CpuSet(core) for cell in ordered for core in cell.cores]
    cpus = [cpu for core in cores for cpu in core][:count]
    threads = max((len(core) for core in cores), default=1)
    return (
        f"<vcpu placement='static'>{len(cpus)}</vcpu>",
        "<cputune>",
        *(f"  <vcpupin vcpu='{virtual}' cpuset='{cpu}'/>" for virtual, cpu in enumerate(cpus)),
        "</cputune>",
        PASSTHROUGH[0],
        f"  <topology sockets='1' dies='1' cores='{max(1, len(cpus) // threads)}' threads='{threads}'/>",
        *PASSTHROUGH[1:],
    )


def _doubts(guest: CpuTopology) -> Iterator[TopologyFinding]:
    for doubt in guest.doubts:
        yield TopologyFinding(
            code="doubt", sentence=doubt, remedy="Check the firmware or the hypervisor's settings."
        )


def _l3_of(guest: CpuTopology, host: CpuTopology | None) -> Iterator[TopologyFinding]:
    l3s, cores = guest.l3s(), guest.cores()
    crowded = any(len({cpu.core for cpu in guest.cpus if cpu.id in node.cpus}) > 1 for node in guest.nodes)
    if not l3s:
        yield TopologyFinding(
            code="no-l3",
            sentence="The machine tells of no L3 cache: every NUMA node counts as one CCX.",
            remedy="In a virtual machine, pass the host's caches through.",
            lines=PASSTHROUGH,
        )
    elif crowded and all(cpus in cores.values() for cpus in l3s.values()):
        yield TopologyFinding(
            code="l3-not-shared",
            sentence="No two cores share an L3 cache: every core counts as a CCX of its own.",
            remedy="In a virtual machine, pass the host's caches through.",
            lines=PASSTHROUGH,
        )
    elif host is not None and host.l3s():
        widest = max(len(cpus) for cpus in l3s.values())
        real = max(len(cpus) for cpus in host.l3s().values())
        if widest > real:
            yield TopologyFinding(
                code="l3-too-wide",
                sentence=f"An L3 cache has {widest} CPUs here, at most {real} on the host: CCXs look like one.",
                remedy="Pass the host's caches through.",
                lines=PASSTHROUGH,
            )


def _processor(guest: CpuTopology) -> Iterator[TopologyFinding]:
    processor = guest.processor
    if processor is not None and processor.is_amd and not processor.topoext:
        yield TopologyFinding(
            code="no-topoext",
            sentence=f"The processor, {processor.name or processor.vendor}, lacks topoext: it cannot tell its CCXs.",
            remedy="Require the feature.",
            lines=PASSTHROUGH,
        )


def _domain(domain: VirtualDomain, host: CpuTopology | None) -> Iterator[TopologyFinding]:
    amd = host is None or host.processor is None or host.processor.is_amd
    wrong = []
    if domain.mode != "host-passthrough":
        wrong.append(f"its cpu mode is {domain.mode or 'not set'}, not host-passthrough")
    if domain.cache != "passthrough":
        wrong.append(f"its cache mode is {domain.cache or 'not set'}, not passthrough")
    if amd and "topoext" not in domain.required:
        wrong.append("it does not require topoext")
    if wrong:
        yield TopologyFinding(
            code="domain-cpu",
            sentence=f"The domain hides the host's CPUs: {', '.join(wrong)}.",
            remedy="Set the cpu element so.",
            lines=PASSTHROUGH,
        )


def _shape(guest: CpuTopology, host: CpuTopology) -> Iterator[TopologyFinding]:
    for what, ours, theirs in (
        ("threads per core", _threads(guest), _threads(host)),
        ("cores per NUMA node", _cores(guest), _cores(host)),
    ):
        if ours != theirs:
            yield TopologyFinding(
                code=what.replace(" ", "-"),
                sentence=f"The machine has {_few(ours)} {what}, its host {_few(theirs)}.",
                remedy="Give the machine whole NUMA nodes of its host, with as many cores and threads.",
                lines=libvirt_lines(len(guest.cpus), host),
            )


def _pins(guest: CpuTopology, host: CpuTopology, domain: VirtualDomain) -> Iterator[TopologyFinding]:
    lines = libvirt_lines(len(guest.cpus), host)
    loose = [cpu.id for cpu in guest.cpus if len(domain.pins.get(cpu.id, ())) != 1]
    if loose:
        yield TopologyFinding(
            code="not-pinned",
            sentence=f"Virtual CPUs {CpuSet.of(loose)} are not pinned to one CPU each: their caches may change.",
            remedy="Pin every virtual CPU.",
            lines=lines,
        )
        return
    places = {cpu.id: cpu for cpu in host.cpus}
    for cpus in guest.cores().values():
        pinned = [domain.pins[cpu].first for cpu in cpus]
        cores = {places[cpu].core if cpu in places else -1 for cpu in pinned}
        if len(cpus) > 1 and len(cores) > 1:
            yield TopologyFinding(
                code="vcpu-order",
                sentence=f"Virtual CPUs {cpus} are threads of one core here, and CPUs "
                f"{', '.join(map(str, pinned))} of the host are not.",
                remedy="Pin the threads of a core one after the other.",
                lines=lines,
            )
            return
    for cpus in guest.l3s().values():
        pinned = [domain.pins[cpu].first for cpu in cpus]
        if len({places[cpu].l3 if cpu in places else -1 for cpu in pinned}) > 1:
            yield TopologyFinding(
                code="ccx-order",
                sentence=f"Virtual CPUs {cpus} share an L3 here, and on the host they are pinned to CPUs of several.",
                remedy="Pin the cores of a CCX one after the other.",
                lines=lines,
            )
            return


def _threads(topology: CpuTopology) -> set[int]:
    return {len(cpus) for cpus in topology.cores().values()}


def _cores(topology: CpuTopology) -> set[int]:
    homes: dict[int, set[int]] = {}
    for cpu in topology.cpus:
        homes.setdefault(cpu.node, set()).add(cpu.core)
    return {len(cores) for cores in homes.values()}


def _few(numbers: set[int]) -> str:
    return " or ".join(map(str, sorted(numbers)))
