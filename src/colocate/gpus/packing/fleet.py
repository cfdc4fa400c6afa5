"""What is free on all nodes, as arrays: one row for each node, one column for each GPU.

Rows are written when something changes, and policies read many at a time. A reader that keeps a result remembers the
number of the last change that it has seen, and looks again only at the rows that changed since.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from colocate.model.gpu import CORES, Cores, Mebibytes

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

_GONE = -1
"""What a row without a node has of everything: nothing fits there."""
_FIRST_ROWS, _FIRST_GPUS = 64, 8
_WORDS = re.compile(r"[a-z0-9]+")


class PackRequest(msgspec.Struct, frozen=True):
    """What a pod asks for, as far as packing is concerned. Equal ones are one kind of pod."""

    cpu: int = 0
    """Thousandths of a CPU."""
    memory: int = 0
    """Memory of the node, in the unit of the nodes."""
    gpus: int = 0
    gpu_memory: Mebibytes = 0
    """Memory of each GPU."""
    gpu_cores: Cores = 0
    models: tuple[str, ...] = ()
    """Words; a GPU will do whose model has one of them in its name, ignoring case. Any GPU where there are none."""


class GpuState(msgspec.Struct, frozen=True):
    """One GPU: what it has and what is left. Nothing is left of one that is sick."""

    size: Mebibytes
    memory: Mebibytes
    cores: Cores = CORES
    model: str = ""


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """One node: what it has and what is left."""

    name: str
    cpu: int
    memory: int
    free_cpu: int
    free_memory: int
    gpus: tuple[GpuState, ...] = ()


class Rooms(msgspec.Struct, frozen=True, gc=False):
    """Rows of a fleet, or what they would become."""

    cpu: Ints
    memory: Ints
    gpu_memory: Ints
    """By row and GPU."""
    gpu_cores: Ints
    per_size: Floats
    """One by the size of each GPU; a single number where all are alike."""
    models: Ints
    """The number of each GPU's model."""

    def __len__(self) -> int:
        return len(self.cpu)

    def shares(self) -> Floats:
        """What is left of each GPU as a part of it: the lesser of memory and cores."""
        parts: Floats = np.minimum(self.gpu_memory * self.per_size, self.gpu_cores * (1 / CORES))
        return parts


class Fleet:
    """All nodes of a cluster."""

    def __init__(self, nodes: Iterable[NodeState] = ()) -> None:
        self.rows: dict[str, int] = {}
        self.names: list[str] = []
        self.changes = 0
        """Counts every change of a row."""
        self.shape_changes = 0
        """Counts changes of what nodes and GPUs there are, which change the measure of everything."""
        self._empty: list[int] = []
        self._models: dict[str, int] = {"": 0}
        self._measured = -1
        self._one_size: Floats | None = None
        self._allocate(_FIRST_ROWS, _FIRST_GPUS)
        for node in nodes:
            self.put(node)

    def _allocate(self, rows: int, gpus: int) -> None:
        self.changed = np.zeros(rows, np.int64)
        self.cpu_of, self.memory_of = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self.cpu, self.memory = np.full(rows, _GONE, np.int64), np.full(rows, _GONE, np.int64)
        self.size = np.zeros((rows, gpus), np.int64)
        self.gpu_memory = np.full((rows, gpus), _GONE, np.int64)
        self.gpu_cores = np.full((rows, gpus), _GONE, np.int64)
        self.model = np.zeros((rows, gpus), np.int64)

    def _grow(self, rows: int, gpus: int) -> None:
        old = {name: getattr(self, name) for name in _ARRAYS}
        self._allocate(rows, gpus)
        for name, array in old.items():
            getattr(self, name)[tuple(slice(0, length) for length in array.shape)] = array

    @property
    def models(self) -> Sequence[str]:
        return list(self._models)

    def put(self, node: NodeState) -> None:
        """Enter a node, or what has become of it."""
        row = self.rows.get(node.name)
        if row is None:
            row = self._empty.pop() if self._empty else len(self.names)
            if row == len(self.names):
                self.names.append(node.name)
            self.names[row] = node.name
            self.rows[node.name] = row
        rows, width = self.size.shape
        if row >= rows or len(node.gpus) > width:
            self._grow(max(rows, 2 * row), max(width, len(node.gpus)))
            self.shape_changes += 1
        sizes = [gpu.size for gpu in node.gpus]
        models = [self._models.setdefault(gpu.model, len(self._models)) for gpu in node.gpus]
        shape = (node.cpu, node.memory, sizes, models)
        count = len(sizes)
        was = (
            int(self.cpu_of[row]),
            int(self.memory_of[row]),
            self.size[row, :count].tolist(),
            self.model[row, :count].tolist(),
        )
        if shape != was or (self.size[row, count:] > 0).any():
            self.shape_changes += 1
            self.cpu_of[row], self.memory_of[row] = node.cpu, node.memory
            self.size[row], self.model[row] = 0, 0
            self.size[row, :count], self.model[row, :count] = sizes, models
        self.cpu[row], self.memory[row] = node.free_cpu, node.free_memory
        self.gpu_memory[row], self.gpu_cores[row] = _GONE, _GONE
        self.gpu_memory[row, :count] = [gpu.memory for gpu in node.gpus]
        self.gpu_cores[row, :count] = [gpu.cores for gpu in node.gpus]
        self._touch(row)

    def remove(self, name: str) -> None:
        row = self.rows.pop(name, None)
        if row is None:
            return
        self.names[row] = ""
        self.cpu[row] = self.memory[row] = _GONE
        self.gpu_memory[row] = self.gpu_cores[row] = _GONE
        self.size[row] = self.cpu_of[row] = self.memory_of[row] = 0
        self._empty.append(row)
        self.shape_changes += 1
        self._touch(row)

    def take(self, row: int, request: PackRequest, gpus: Flags) -> None:
        """Give a pod what it asks for of a row, and of these GPUs."""
        self.cpu[row] -= request.cpu
        self.memory[row] -= request.memory
        self.gpu_memory[row] -= request.gpu_memory * gpus
        self.gpu_cores[row] -= request.gpu_cores * gpus
        self._touch(row)

    def _touch(self, row: int) -> None:
        self.changes += 1
        self.changed[row] = self.changes

    def rooms(self, rows: Ints) -> Rooms:
        """What is left on these rows."""
        self._measure()
        per_size = self._one_size if self._one_size is not None else self.per_size[rows]
        # A column without a GPU has nothing free, rather than less.
        return Rooms(
            self.cpu[rows],
            self.memory[rows],
            np.maximum(self.gpu_memory[rows], 0),
            np.maximum(self.gpu_cores[rows], 0),
            per_size,
            self.model[rows],
        )

    def _measure(self) -> None:
        """Work out what depends on which nodes there are, once for each change of that."""
        if self._measured == self.shape_changes:
            return
        self._measured = self.shape_changes
        there = self.size > 0
        self.per_size = np.where(there, 1.0 / np.maximum(self.size, 1), 0.0)
        sizes = np.unique(self.size[there])
        self._one_size = np.full((1, 1), 1.0 / sizes[0]) if len(sizes) == 1 else None
        self._most = (
            max(float(self.cpu_of.max(initial=0)), 1.0),
            max(float(self.memory_of.max(initial=0)), 1.0),
            max(float(there.sum(axis=1).max(initial=0)), 1.0),
        )

    @property
    def most(self) -> tuple[float, float, float]:
        """The most CPU, memory and GPUs of any node: what free amounts are measured by."""
        self._measure()
        return self._most

    @property
    def largest_gpu(self) -> Mebibytes:
        return int(self.size.max(initial=0))

    def suits(self, words: Iterable[str]) -> Flags:
        """By the number of a model: whether one of the words is in its name."""
        return np.array([suits(model, tuple(words)) for model in self._models], np.bool_)

    def unallocated(self) -> float:
        """GPUs that no pod has, counted in parts."""
        return float(self.rooms(np.arange(len(self.cpu))).shares().sum())

    def total(self) -> int:
        return int((self.size > 0).sum())


_ARRAYS = ("changed", "cpu_of", "memory_of", "cpu", "memory", "size", "gpu_memory", "gpu_cores", "model")


def suits(model: str, words: Sequence[str]) -> bool:
    """Whether a GPU of this model suits a pod that names these words: `A10` is no `NVIDIA A100-SXM4-40GB`."""
    return not words or any(_plain(word) in _plain(model) for word in words)


def _plain(name: str) -> str:
    return f" {' '.join(_WORDS.findall(name.lower()))} "


def kinds_of(requests: Iterable[PackRequest]) -> Mapping[PackRequest, int]:
    """How often each kind of pod occurs."""
    counts: dict[PackRequest, int] = {}
    for request in requests:
        counts[request] = counts.get(request, 0) + 1
    return counts
