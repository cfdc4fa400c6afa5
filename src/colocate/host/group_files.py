"""Reads the memory files of one control group, which stay open; cgroup v1 and v2.

FileNotFoundError means that the group is gone; `Garbled`, that a file has an unknown format.
"""

import os
from pathlib import Path
from typing import TypeAlias

from colocate.host import memory_files
from colocate.host.kept_files import DescriptorBudget, KeptFile
from colocate.host.memory_files import StatParser
from colocate.host.memory_limits import read_high_mark
from colocate.model.memory import Bytes, PodMemory, PodUid
from colocate.model.pod import QosClass

_PAGE = os.sysconf("SC_PAGE_SIZE")
_V1_STAT, _V2_STAT = StatParser(1), StatParser(2)


class V2Files:
    """cgroup v2."""

    def __init__(self, folder: Path, budget: DescriptorBudget, *, by_node: bool) -> None:
        self._folder = folder
        self._usage = KeptFile(folder / "memory.current", budget)
        self._stat = KeptFile(folder / "memory.stat", budget)
        self._max = KeptFile(folder / "memory.max", budget)
        self._high = KeptFile(folder / "memory.high", budget)
        self._swap = KeptFile(folder / "memory.swap.current", budget)
        self._swap_max = KeptFile(folder / "memory.swap.max", budget)
        self._pressure = KeptFile(folder / "memory.pressure", budget)
        self._numa = KeptFile(folder / "memory.numa_stat", budget) if by_node else None

    def pod(self, uid: PodUid, qos: QosClass) -> PodMemory:
        usage = memory_files.number(self._usage.read())
        stat = _V2_STAT.parse(self._stat.read())
        swap = self._swap.read_if_there()
        swap_max = self._swap_max.read_if_there()
        pressure = self._pressure.read_if_there()
        high = memory_files.limit(self._high.read())
        return PodMemory(
            uid=uid,
            qos=qos,
            usage=usage,
            anon=stat.anon,
            file=stat.file,
            inactive_file=stat.inactive_file,
            shmem=stat.shmem,
            swap=memory_files.number(swap) if swap else None,
            limit=memory_files.limit(self._max.read()),
            high=high,
            our_high=None if high is None else read_high_mark(self._folder),
            swap_limit=memory_files.limit(swap_max) if swap_max else None,
            pressure=memory_files.pressure(pressure) if pressure else None,
            refaults=stat.refaults,
            numa=memory_files.numa_stat(self._numa.read(), 2, _PAGE) if self._numa else None,
        )

    def close(self) -> None:
        for file in (
            *(self._usage, self._stat, self._max, self._high, self._swap, self._swap_max, self._pressure),
            *([self._numa] if self._numa else []),
        ):
            file.close()


class V1Files:
    """cgroup v1, where only lines that start with total_ include the groups below."""

    def __init__(self, folder: Path, budget: DescriptorBudget, *, by_node: bool) -> None:
        self._usage = KeptFile(folder / "memory.usage_in_bytes", budget)
        self._stat = KeptFile(folder / "memory.stat", budget)
        self._limit = KeptFile(folder / "memory.limit_in_bytes", budget)
        self._memsw = KeptFile(folder / "memory.memsw.limit_in_bytes", budget)
        self._numa = KeptFile(folder / "memory.numa_stat", budget) if by_node else None

    def pod(self, uid: PodUid, qos: QosClass) -> PodMemory:
        usage = memory_files.number(self._usage.read())
        stat = _V1_STAT.parse(self._stat.read())
        limit = memory_files.limit(self._limit.read())
        return PodMemory(
            uid=uid,
            qos=qos,
            usage=usage,
            anon=stat.anon,
            file=stat.file,
            inactive_file=stat.inactive_file,
            shmem=stat.shmem,
            swap=stat.swap,
            limit=limit,
            swap_limit=self._swap_limit(limit),
            refaults=stat.refaults,
            numa=memory_files.numa_stat(self._numa.read(), 1, _PAGE) if self._numa else None,
        )

    def _swap_limit(self, limit: Bytes | None) -> Bytes | None:
        """v1 limits memory and swap together."""
        data = self._memsw.read_if_there()
        both = memory_files.limit(data) if data else None
        return max(0, both - limit) if both is not None and limit is not None else None

    def close(self) -> None:
        for file in (
            self._usage,
            self._stat,
            self._limit,
            self._memsw,
            *([self._numa] if self._numa else []),
        ):
            file.close()


GroupFiles: TypeAlias = V1Files | V2Files


def group_files(version: int, folder: Path, budget: DescriptorBudget, *, by_node: bool = False) -> GroupFiles:
    """The files of a group; with `by_node`, also where its memory lies by NUMA node."""
    files = V2Files if version == 2 else V1Files
    return files(folder, budget, by_node=by_node)
