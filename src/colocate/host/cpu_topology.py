"""Reads a machine's CPUs from the files of sysfs: sockets, dies, NUMA nodes, L3 groups, cores, threads.

It copes with what real machines leave out (L3 ids, die ids, lists where only masks are, distances), and records
contradictions as doubts. Garbage is an error that names the file. Nothing is decided here.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from colocate.errors import UserError
from colocate.host.system_files import CPUINFO, SystemFiles, open_dump, this_machine
from colocate.model.cpu_topology import CpuTopology, LogicalCpu, NumaNode, ProcessorKind
from colocate.model.cpuset import EMPTY, CpuSet
from colocate.model.memory import Bytes

_CPU = "devices/system/cpu"
_NODE = "devices/system/node"
_TRIES = 3
_LARGEST_NUMBER = 1 << 31
_NOT_TOLD = (0xFFFF, 0xFFFFFFFF)
"""Values by which some firmware says that a package or die is unknown; other firmware writes -1."""
_MEMORY = re.compile(r"(MemTotal|MemFree):\s*(\d{1,15}) kB", re.ASCII)
_NUMBERED_NODE = re.compile(r"node(\d{1,4})", re.ASCII)


def read_topology(dump: Path | None = None) -> CpuTopology:
    """Read the topology of this machine, or of a dump; UserError where that fails."""
    files = this_machine() if dump is None else open_dump(dump)
    for _ in range(_TRIES):
        before = files.read(f"{_CPU}/online")
        topology = _Reader(files).topology()
        # A CPU may go online or offline meanwhile: the files agree only if none did.
        if files.read(f"{_CPU}/online") == before:
            break
    return topology


class _Reader:
    """Reads one machine once, and collects contradictions."""

    def __init__(self, files: SystemFiles) -> None:
        self._files = files
        self._doubts: list[str] = []

    def topology(self) -> CpuTopology:
        online = self._set(f"{_CPU}/online")
        if self._files.read(f"{_CPU}/online") is None:
            raise UserError(
                f"{self._files.name}: there is no {_CPU}/online, so its CPUs are unknown; dump the whole of "
                "/sys/devices/system"
            )
        if not online:
            raise UserError(f"{self._files.name}: {_CPU}/online names no CPU; dump the machine again")
        nodes = self._nodes(online)
        homes = {cpu: node.id for node in nodes for cpu in node.cpus}
        sockets = {cpu: self._place(cpu, "physical_package_id") for cpu in online}
        if any(socket is None for socket in sockets.values()):
            self._doubts.append("Some CPUs do not report their socket; they count as socket 0.")
        dies = {cpu: self._place(cpu, "die_id") for cpu in online}
        cores = self._cores(online, sockets, dies)
        l3s = self._l3s(online)
        return CpuTopology(
            cpus=tuple(
                LogicalCpu(
                    id=cpu,
                    core=cores[cpu],
                    l3=l3s.get(cpu),
                    node=homes[cpu],
                    die=dies[cpu],
                    socket=sockets[cpu] or 0,
                )
                for cpu in online
            ),
            nodes=nodes,
            offline=self._set(f"{_CPU}/offline") or EMPTY,
            isolated=(self._set(f"{_CPU}/isolated") or EMPTY) & online,
            kinds=self._kinds(online),
            processor=self._processor(),
            doubts=tuple(self._doubts),
        )

    def _nodes(self, online: CpuSet) -> tuple[NumaNode, ...]:
        numbers = sorted(
            int(match[1]) for name in self._files.names(_NODE) if (match := _NUMBERED_NODE.fullmatch(name))
        )
        known = self._set(f"{_NODE}/online")
        numbers = [number for number in numbers if known is None or number in known] or [0]
        cpus = {number: self._node_cpus(number) for number in numbers}
        if all(found is None for found in cpus.values()):
            cpus = self._linked_nodes(online, cpus)
        taken = EMPTY
        nodes = []
        for number in numbers:
            own = (cpus[number] or EMPTY) & online
            if not own.isdisjoint(taken):
                self._doubts.append(
                    f"CPUs {own & taken} are in two NUMA nodes; they count for the lower one."
                )
                own -= taken
            taken |= own
            memory = self._memory(number)
            nodes.append(
                NumaNode(
                    id=number,
                    cpus=own,
                    memory=memory.get("MemTotal"),
                    free=memory.get("MemFree"),
                    distances=self._distances(number, numbers),
                )
            )
        if lost := online - taken:
            if taken:
                self._doubts.append(f"CPUs {lost} are in no NUMA node; they count for node {numbers[0]}.")
            first = nodes[0]
            nodes[0] = NumaNode(
                id=first.id,
                cpus=first.cpus | lost,
                memory=first.memory,
                free=first.free,
                distances=first.distances,
            )
        return tuple(nodes)

    def _node_cpus(self, number: int) -> CpuSet | None:
        folder = f"{_NODE}/node{number}"
        listed = self._set(f"{folder}/cpulist")
        return self._set(f"{folder}/cpumap", CpuSet.parse_mask) if listed is None else listed

    def _linked_nodes(self, online: CpuSet, nodes: Mapping[int, CpuSet | None]) -> dict[int, CpuSet | None]:
        """The CPUs of nodes by the links cpuN/nodeM, where the nodes themselves have no list."""
        found: dict[int, set[int]] = {number: set() for number in nodes}
        for cpu in online:
            for name in self._files.names(f"{_CPU}/cpu{cpu}"):
                if (match := _NUMBERED_NODE.fullmatch(name)) and int(match[1]) in found:
                    found[int(match[1])].add(cpu)
        return {number: CpuSet.of(cpus) for number, cpus in found.items()}

    def _memory(self, node: int) -> dict[str, Bytes]:
        text = self._files.read(f"{_NODE}/node{node}/meminfo") or ""
        return {match[1]: int(match[2]) * 1024 for match in _MEMORY.finditer(text)}

    def _distances(self, node: int, numbers: list[int]) -> dict[int, int]:
        path = f"{_NODE}/node{node}/distance"
        text = self._files.read(path)
        if text is None:
            return {}
        found = [self._checked(word, path) for word in text.split()]
        if len(found) != len(numbers):
            self._doubts.append(
                f"NUMA node {node} has {len(found)} distances to {len(numbers)} nodes; none is used."
            )
            return {}
        return dict(zip(numbers, found, strict=True))

    def _place(self, cpu: int, name: str) -> int | None:
        number = self._number(f"{_CPU}/cpu{cpu}/topology/{name}")
        return None if number is None or number < 0 or number in _NOT_TOLD else number

    def _cores(
        self, online: CpuSet, sockets: Mapping[int, int | None], dies: Mapping[int, int | None]
    ) -> dict[int, int]:
        """The lowest CPU of each CPU's core."""
        siblings = {cpu: self._siblings(cpu) for cpu in online}
        by_id: dict[tuple[int | None, ...], int] = {}
        cores: dict[int, int] = {}
        odd = []
        for cpu in online:
            own = siblings[cpu]
            if own is None:
                core_id = self._number(f"{_CPU}/cpu{cpu}/topology/core_id")
                key = (sockets[cpu], dies[cpu], cpu if core_id is None else core_id, core_id is None)
                cores[cpu] = by_id.setdefault(key, cpu)
                continue
            own &= online
            agreed = cpu in own and all(siblings[other] is not None for other in own)
            if not agreed or any((siblings[other] or EMPTY) & online != own for other in own):
                odd.append(cpu)
                cores[cpu] = cpu
            else:
                cores[cpu] = own.first
        if odd:
            self._doubts.append(
                f"CPUs {CpuSet.of(odd)} contradict each other on their cores; each counts as one."
            )
        return cores

    def _siblings(self, cpu: int) -> CpuSet | None:
        folder = f"{_CPU}/cpu{cpu}/topology"
        for name in ("core_cpus", "thread_siblings"):
            found = self._set(f"{folder}/{name}_list")
            if found is None:
                found = self._set(f"{folder}/{name}", CpuSet.parse_mask)
            if found is not None:
                return found
        return None

    def _l3s(self, online: CpuSet) -> dict[int, int]:
        """The L3 group number of each CPU; CPUs without an L3 are left out."""
        told = {cpu: found for cpu in online if (found := self._l3(cpu, online))}
        with_id: dict[int, set[int]] = {}
        for cpu, (number, _) in told.items():
            if number is not None:
                with_id.setdefault(number, set()).add(cpu)
        for number, cpus in sorted(with_id.items()):
            lists = {told[cpu][1] for cpu in cpus} - {None}
            if lists and lists != {CpuSet.of(cpus)}:
                cpu = min(cpus)
                self._doubts.append(
                    f"L3 ids and lists disagree: id {number} has CPUs {CpuSet.of(cpus)}, CPU {cpu} lists "
                    f"{told[cpu][1]}; CPUs share an L3 only where both say so."
                )
                break
        if 0 < len(told) < len(online):
            self._doubts.append(
                f"CPUs {online - CpuSet.of(told)} report no L3; each NUMA node's count as one group."
            )
        groups: dict[tuple[int | None, CpuSet | None], list[int]] = {}
        for cpu, key in told.items():
            groups.setdefault(key, []).append(cpu)
        ids = [number for number, _ in groups]
        # Use the kernel's ids where they are unique: every group has one, and no two are equal.
        usable = None not in ids and len(set(ids)) == len(ids)
        return {
            cpu: number if usable and number is not None else place
            for place, ((number, _), cpus) in enumerate(groups.items())
            for cpu in cpus
        }

    def _l3(self, cpu: int, online: CpuSet) -> tuple[int | None, CpuSet | None] | None:
        folder = f"{_CPU}/cpu{cpu}/cache"
        for index in self._files.names(folder):
            own = f"{folder}/{index}"
            if not index.startswith("index") or self._number(f"{own}/level") != 3:
                continue
            if (self._files.read(f"{own}/type") or "").strip() == "Instruction":
                continue
            shared = self._set(f"{own}/shared_cpu_list")
            if shared is None:
                shared = self._set(f"{own}/shared_cpu_map", CpuSet.parse_mask)
            number = self._number(f"{own}/id")
            if number is not None and number < 0:
                number = None
            if shared is not None or number is not None:
                return number, None if shared is None else (shared & online) | CpuSet.of([cpu])
        return None

    def _kinds(self, online: CpuSet) -> dict[str, CpuSet]:
        named = {"performance": "devices/cpu_core/cpus", "efficiency": "devices/cpu_atom/cpus"}
        kinds = {kind: cpus & online for kind, path in named.items() if (cpus := self._set(path))}
        if kinds:
            return kinds
        by_capacity: dict[int, set[int]] = {}
        for cpu in online:
            capacity = self._number(f"{_CPU}/cpu{cpu}/cpu_capacity")
            if capacity is not None:
                by_capacity.setdefault(capacity, set()).add(cpu)
        if len(by_capacity) < 2:
            return {}
        ordered = sorted(by_capacity.items(), reverse=True)
        return {f"capacity {capacity}": CpuSet.of(cpus) for capacity, cpus in ordered}

    def _processor(self) -> ProcessorKind | None:
        text = self._files.read(CPUINFO)
        if not text:
            return None
        first = text.partition("\n\n")[0]
        found = {
            key.strip(): value.strip()
            for key, _, value in (line.partition(":") for line in first.splitlines())
        }
        flags = found.get("flags", "").split()
        return ProcessorKind(
            vendor=found.get("vendor_id", "")[:40],
            name=found.get("model name", "")[:80],
            virtual="hypervisor" in flags,
            topoext="topoext" in flags,
        )

    def _set(self, path: str, parse: Callable[[str], CpuSet] = CpuSet.parse) -> CpuSet | None:
        text = self._files.read(path)
        if text is None or not text.strip():
            return None
        try:
            return parse(text)
        except ValueError as error:
            raise UserError(f"{self._files.name}: {path}: {error}") from error

    def _number(self, path: str) -> int | None:
        text = self._files.read(path)
        return None if text is None or not text.strip() else self._checked(text.strip(), path)

    def _checked(self, text: str, path: str) -> int:
        digits = text.removeprefix("-")
        if (
            not (digits.isascii() and digits.isdigit())
            or len(digits) > 10
            or abs(int(text)) > 2 * _LARGEST_NUMBER
        ):
            raise UserError(
                f"{self._files.name}: {path}: {text[:40]!r} is not a number of sysfs; dump it again"
            )
        return int(text)
