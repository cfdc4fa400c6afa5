"""Pods for tests on a real kernel: control groups like a kubelet's, with processes that take memory when told."""

import asyncio
import contextlib
import os
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from colocate.errors import Unavailable
from colocate.host import cgroups
from colocate.host.cgroups import Naming, Tree
from colocate.host.memory_group import MemoryGroup
from colocate.host.pod_memory import PodMemoryReader
from colocate.model.memory import PodMemory
from colocate.model.pod import QosClass
from tests.support.memory_probe import is_counted
from tests.support.waiting import until

MIB = 1 << 20

# `anon` touches page by page, as programs do; `bulk` has the kernel fill a great mapping, in huge pages where it
# likes to; `bound` does that on one NUMA node alone; `cache` writes a file; `read` reads one that nobody has yet,
# twice, so that the kernel takes it for active.
_EATER = """
import mmap, os, sys
held = []
for line in sys.stdin:
    what, amount, *path = line.split()
    size = int(amount)
    if what == "anon":
        held.append(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        for at in range(0, size, 4096):
            held[-1][at:at + 8] = at.to_bytes(8, "little")
    elif what in ("bulk", "bound"):
        if what == "bound":
            import ctypes
            syscall, set_mempolicy, default, bind = ctypes.CDLL(None).syscall, 238, 0, 2
            mask = ctypes.c_ulong(1 << int(path[0]))
            assert not syscall(set_mempolicy, bind, ctypes.byref(mask), ctypes.c_ulong(64))
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        held.append(mmap.mmap(-1, size, flags=flags))
        if what == "bound":
            assert not syscall(set_mempolicy, default, None, ctypes.c_ulong(0))
    elif what == "cache":
        with open(path[0], "wb") as file:
            for at in range(0, size, 1 << 20):
                file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
    elif what == "read":
        file = os.open(path[0], os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        for _ in range(2):
            for at in range(0, size or os.fstat(file).st_size, 1 << 20):
                os.pread(file, 1 << 20, at)
        os.close(file)
    elif what == "free":
        held.clear()
    print("done", flush=True)
"""
_JOIN = 'for procs in $1; do echo $$ > "$procs" || exit 126; done; shift; exec "$@"'


class Eater:
    """A process in a pod's container that takes memory when told to."""

    def __init__(self, process: asyncio.subprocess.Process, group: MemoryGroup | None = None) -> None:
        self.process = process
        self.pid = process.pid
        self._group = group

    async def anon(self, amount: int) -> None:
        await self._do(f"anon {amount}")

    async def bulk(self, amount: int) -> None:
        await self._do(f"bulk {amount}")

    async def bound(self, amount: int, node: int) -> None:
        """On x86-64."""
        await self._do(f"bound {amount} {node}")

    async def read(self, file: Path, amount: int = 0) -> None:
        """So many bytes of it, or all."""
        await self._do(f"read {amount} {file}")

    async def cache(self, amount: int, file: Path) -> None:
        await self._do(f"cache {amount} {file}")

    async def free(self) -> None:
        await self._do("free 0")

    async def ends(self) -> int:
        return await self.process.wait()

    async def _do(self, what: str) -> None:
        self.begin(what)
        assert self.process.stdout is not None
        answer = await self.process.stdout.readline()
        if answer != b"done\n":
            raise ProcessLookupError(f"the process ended with {await self.process.wait()} at {what!r}")
        group = self._group
        if group is not None:
            await until(lambda: is_counted(group), f"the kernel to count {what!r}")

    def begin(self, what: str) -> None:
        """Tell it what to do, and do not wait."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n".encode())


class RealPods:
    """Pods in a group of their own at the top of this machine's tree; all is removed at the end."""

    def __init__(self, tree: Tree, naming: Naming) -> None:
        self.tree = tree
        self.naming = naming
        self.parent = Path(f"colocate-test-{uuid.uuid4().hex[:8]}")
        self._processes: list[asyncio.subprocess.Process] = []

    def reader(self, *, by_node: bool = False) -> PodMemoryReader:
        return PodMemoryReader(self.tree, below=self.parent, by_node=by_node)

    def create(self, uid: str, qos: QosClass = QosClass.BEST_EFFORT) -> MemoryGroup:
        path = self.path(uid, qos)
        cgroups.create(self.tree, path)
        return MemoryGroup(self.tree.roots["memory"] / path, self.tree.version)

    def remove(self, uid: str, qos: QosClass = QosClass.BEST_EFFORT) -> None:
        cgroups.remove(self.tree, self.path(uid, qos))

    def path(self, uid: str, qos: QosClass = QosClass.BEST_EFFORT) -> Path:
        return self.parent / cgroups.pod_path(uid, qos, self.naming)

    async def run(self, uid: str, qos: QosClass = QosClass.BEST_EFFORT) -> Eater:
        """Start a process in a container of a pod that was created."""
        container = self.path(uid, qos) / "main"
        cgroups.create(self.tree, container)
        procs = " ".join(str(each / "cgroup.procs") for each in self.tree.folders(container))
        pod = self.tree.roots["memory"] / self.path(uid, qos)
        return await self._start(procs, MemoryGroup(pod, self.tree.version))

    async def run_outside(self) -> Eater:
        """Start a process that is in no pod."""
        return await self._start("")

    async def _start(self, procs: str, group: MemoryGroup | None = None) -> Eater:
        process = await asyncio.create_subprocess_exec(
            *["/bin/sh", "-c", _JOIN, "sh", procs, sys.executable, "-c", _EATER],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self._processes.append(process)
        eater = Eater(process, group)
        await eater.free()
        return eater

    def read(self, uid: str) -> PodMemory:
        reader = self.reader(by_node=True)
        try:
            return next(pod for pod in reader.read().pods if pod.uid == uid)
        finally:
            reader.close()

    async def close(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()
        await cgroups.kill(self.tree, self.parent)
        cgroups.remove(self.tree, self.parent)


@asynccontextmanager
async def real_pods(naming: Naming) -> AsyncIterator[RealPods]:
    """Skips with the reason where control groups for memory cannot be made."""
    try:
        tree = cgroups.find_tree()
        if "memory" not in tree.roots:
            raise Unavailable("the memory controller is not in the tree of control groups")
        pods = RealPods(tree, naming)
        cgroups.create(tree, pods.parent)
    except (OSError, Unavailable) as error:
        missing(f"no control groups can be made here: {error}")
    try:
        yield pods
    finally:
        await pods.close()


def missing(what: str) -> None:
    """Skip for want of something that any machine of the project's CI has."""
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)
