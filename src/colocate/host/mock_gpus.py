"""Simulated GPUs behind the interface of real ones, with faults on demand."""

import threading
import uuid
from collections import deque
from collections.abc import Sequence

import msgspec

from colocate.errors import UserError
from colocate.host.gpu_source import GpuReading, GpuSource, GpuSurvey, GpuUnavailable, Xid
from colocate.model.memory import Bytes

_NAMESPACE = uuid.UUID("6fb5d3a0-8d8c-5f43-9d5b-c2f6a4e0b7a1")
LOST = "the GPU has fallen off the bus"
FELL_OFF_THE_BUS = 79
"""The XID that a driver reports for it."""


class MockGpu(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated GPU without faults."""

    uuid: str
    model: str
    memory: Bytes
    numa: int | None = None
    mig: bool = False
    used: Bytes = 0


def mock_uuid(*names: object) -> str:
    """A UUID that depends only on the given names."""
    return f"GPU-{uuid.uuid5(_NAMESPACE, '/'.join(map(str, names)))}"


class MockGpus(GpuSource):
    """Reports mock GPUs. The methods that change them may be called from any thread."""

    def __init__(self, gpus: Sequence[MockGpu]) -> None:
        self._gpus = list(gpus)
        self._lost: set[str] = set()
        self._silent = ""
        self._xids: deque[Xid] = deque()
        self._replaced = 0
        self._closed = False
        self._changed = threading.Condition()

    @property
    def gpus(self) -> tuple[MockGpu, ...]:
        return tuple(self._gpus)

    @property
    def lost(self) -> frozenset[str]:
        """UUIDs of the GPUs that have fallen off the bus."""
        return frozenset(self._lost)

    @property
    def silent(self) -> str:
        """Why no GPU answers; empty while they answer."""
        return self._silent

    def configure(self, gpus: Sequence[MockGpu]) -> None:
        """Replace the set of GPUs; those that remain keep their faults."""
        with self._changed:
            self._gpus = list(gpus)
            self._lost &= {gpu.uuid for gpu in gpus}

    def find(self, name: str) -> MockGpu:
        """The GPU with this index, UUID, or beginning of a UUID; UserError where none or several match."""
        if name.isascii() and name.isdigit() and len(name) < 5 and int(name) < len(self._gpus):
            return self._gpus[int(name)]
        named = [gpu for gpu in self._gpus if name and gpu.uuid.lower().startswith(name.lower())]
        if len(named) == 1:
            return named[0]
        known = ", ".join(f"{index} ({gpu.uuid})" for index, gpu in enumerate(self._gpus)) or "none"
        what = "several mock GPUs" if named else "no mock GPU"
        raise UserError(f"{name[:60]!r} names {what}; known are {known}")

    def xid(self, gpu: MockGpu, code: int) -> None:
        """Report an error of this GPU."""
        with self._changed:
            self._xids.append(Xid(code, gpu.uuid))
            self._changed.notify_all()

    def lose(self, gpu: MockGpu) -> None:
        """Let the GPU fall off the bus, and report the error."""
        with self._changed:
            self._lost.add(gpu.uuid)
        self.xid(gpu, FELL_OFF_THE_BUS)

    def recover(self, gpu: MockGpu) -> None:
        """Let the GPU answer again."""
        with self._changed:
            self._lost.discard(gpu.uuid)

    def use(self, gpu: MockGpu, used: Bytes) -> None:
        """Set how much of its memory is in use."""
        self._put(gpu, msgspec.structs.replace(gpu, used=used))

    def replace(self, gpu: MockGpu, uuid: str = "") -> MockGpu:
        """Replace it by another GPU of the same kind."""
        self._replaced += 1
        new = msgspec.structs.replace(gpu, uuid=uuid or mock_uuid(gpu.uuid, self._replaced), used=0)
        if any(other.uuid == new.uuid for other in self._gpus):
            raise UserError(f"there is a mock GPU {new.uuid} already; give another UUID")
        self._put(gpu, new)
        return new

    def silence(self, reason: str = "") -> None:
        """Stop answering, for this reason; without a reason, answer again."""
        with self._changed:
            self._silent = reason

    def survey(self) -> GpuSurvey:
        with self._changed:
            if self._silent:
                raise GpuUnavailable(self._silent)
            return GpuSurvey(tuple(self._reading(index, gpu) for index, gpu in enumerate(self._gpus)))

    def wait_for_xid(self, seconds: float) -> Xid | None:
        with self._changed:
            self._changed.wait_for(lambda: self._xids or self._closed, seconds)
            return self._xids.popleft() if self._xids else None

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _put(self, old: MockGpu, new: MockGpu) -> None:
        with self._changed:
            self._gpus[self._gpus.index(old)] = new
            self._lost.discard(old.uuid) if old.uuid != new.uuid else None

    def _reading(self, index: int, gpu: MockGpu) -> GpuReading:
        lost = gpu.uuid in self._lost
        return GpuReading(
            uuid=gpu.uuid,
            index=index,
            model=gpu.model,
            memory=gpu.memory,
            used=None if lost else gpu.used,
            numa=gpu.numa,
            mig=gpu.mig,
            processes=None if lost else (),
            problem=LOST if lost else "",
        )
