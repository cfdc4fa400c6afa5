"""One refresh of the memory of 250 pods, against reading the very same files bare.

The groups are real where this machine lets us make some, else folders with files such as a kernel has. Bare
means: every file is open already, is read with pread, and nobody looks at it.
"""

import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import uvloop

from bench.measure import Sample, side_by_side
from bench.ratio import Figure, Ratio, Row
from colocate.errors import Unavailable
from colocate.host import cgroups
from colocate.host.cgroups import Naming, Tree
from colocate.host.node_memory import read_node_memory
from colocate.host.pod_memory import PodMemoryReader
from colocate.model.pod import QosClass

MANY, FEW = 250, 50
PERIOD = 10.0
ONE_PERCENT = PERIOD / 100

REFRESH = Ratio("refresh of 250 pods' memory", "reading the same files bare", 3.0)
LINEAR = Ratio("refresh of 250 pods, per pod", "with 50 pods, per pod", 1.5)
CPU = Ratio("CPU time of a refresh every 10 s", "one percent of a core", 1.0)
RATIOS = (REFRESH, LINEAR, CPU)

_FILES = {
    1: ("usage_in_bytes", "stat", "limit_in_bytes", "memsw.limit_in_bytes"),
    2: ("current", "stat", "max", "high", "swap.current", "swap.max", "pressure"),
}
"""What is read of a pod."""


class Pods(msgspec.Struct, frozen=True):
    """Groups of so many pods."""

    tree: Tree
    parent: Path
    kind: str

    def reader(self) -> PodMemoryReader:
        return PodMemoryReader(self.tree, below=self.parent, descriptors=10_000)

    def open_files(self) -> list[int]:
        """The files of every pod, once more."""
        top = self.tree.roots["memory"] / self.parent
        names = [f"memory.{name}" for name in _FILES[self.tree.version]]
        paths = [folder / name for folder in sorted(top.rglob("*-pod*.slice")) for name in names]
        return [os.open(path, os.O_RDONLY) for path in paths if path.exists()]


def bench() -> list[Row]:
    return uvloop.run(_bench())


async def _bench() -> list[Row]:
    with _pods(MANY) as many, _pods(FEW) as few:
        reader, small = many.reader(), few.reader()
        assert len(reader.read().pods) == MANY
        assert len(small.read().pods) == FEW
        files = many.open_files()
        refresh = await side_by_side(
            _sample(reader.read), _sample(lambda: [os.pread(file, 16384, 0) for file in files])
        )
        linear = await side_by_side(_sample(reader.read), _sample(small.read))
        turns = [_cpu_time(lambda: (reader.read(), read_node_memory())) for _ in range(50)]
        for file in files:
            os.close(file)
        reader.close()
        small.close()
    return [
        REFRESH.row(
            refresh.ratio,
            Figure("refresh", refresh.ours * 1e3, "ms"),
            Figure("bare", refresh.theirs * 1e3, "ms"),
            Figure("files", len(files)),
            Figure("groups", many.kind),
        ),
        LINEAR.row(linear.ratio / (MANY / FEW), Figure("50 pods", linear.theirs * 1e3, "ms")),
        CPU.row(
            max(turns) / ONE_PERCENT,
            Figure("greatest of 50, the machine's memory included", max(turns) * 1e3, "ms"),
        ),
    ]


def _sample(work: Callable[[], object]) -> Sample:
    async def sample() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return sample


def _cpu_time(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


@contextmanager
def _pods(count: int) -> Iterator[Pods]:
    """Real groups, or files like theirs."""
    parent = Path(f"colocate-bench-{uuid.uuid4().hex[:8]}")
    try:
        found = cgroups.find_tree()
        tree = Tree(found.version, {"memory": found.roots["memory"]})
        cgroups.create(tree, parent)
    except (OSError, KeyError, Unavailable):
        with tempfile.TemporaryDirectory(prefix="colocate-") as folder:
            tree = Tree(2, {"memory": Path(folder)})
            for path in _paths(count):
                _write_files(Path(folder) / parent / path)
            yield Pods(tree, parent, "plain files")
        return
    try:
        for path in _paths(count):
            cgroups.create(tree, parent / path)
        yield Pods(tree, parent, f"cgroup v{tree.version}")
    finally:
        cgroups.remove(tree, parent)


def _paths(count: int) -> Iterator[Path]:
    classes = list(QosClass)
    for number in range(count):
        yield cgroups.pod_path(str(uuid.uuid4()), classes[number % len(classes)], Naming.SYSTEMD)


def _write_files(folder: Path) -> None:
    folder.mkdir(parents=True)
    some, full = (f"{each} avg10=0.00 avg60=0.00 avg300=0.00 total=0\n" for each in ("some", "full"))
    lines = [f"figure_of_a_kernel_{number} {number * 4096}\n" for number in range(50)]
    for name in ("anon", "shmem", "inactive_file", "active_file"):
        lines.insert(len(lines) // 2, f"{name} 123456789\n")
    texts = {
        "stat": "".join(lines),
        "pressure": some + full,
        "max": "max\n",
        "high": "max\n",
        "swap.max": "max\n",
    }
    for name in _FILES[2]:
        (folder / f"memory.{name}").write_text(texts.get(name, "123456789\n"))
