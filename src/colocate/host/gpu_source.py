"""The interface to the GPUs of this machine, and its data.

`nvml` asks NVIDIA's driver, `mock_gpus` simulates GPUs. `gpus` decides whether a GPU is fit for pods. Every call
may block, forever if a GPU is faulty: callers use a thread.
"""

from typing import Protocol

import msgspec

from colocate.errors import Unavailable
from colocate.model.memory import Bytes


class GpuUnavailable(Unavailable):
    """No GPU can be read now; the message says why."""


class GpuProcess(msgspec.Struct, frozen=True):
    """A process that uses memory of a GPU."""

    pid: int
    """The process id in the PID namespace of the host."""
    memory: Bytes | None
    """Its memory on the GPU; None where the driver does not report it."""


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU at one moment."""

    uuid: str
    index: int
    """Its number in the driver's order, which may change when the machine restarts."""
    model: str = ""
    memory: Bytes = 0
    """All of its memory."""
    used: Bytes | None = None
    """Memory in use by any process; None where unknown."""
    numa: int | None = None
    mig: bool = False
    """Whether it is in MIG mode: split into instances, which are separate devices."""
    processes: tuple[GpuProcess, ...] | None = None
    """The processes that use it; None where the driver does not report them."""
    problem: str = ""
    """Why it does not answer; the other fields are then from an earlier reading. Empty where it answers."""


class GpuSurvey(msgspec.Struct, frozen=True):
    """All GPUs at one moment."""

    gpus: tuple[GpuReading, ...]
    unknown: tuple[str, ...] = ()
    """A sentence for each GPU that does not answer and was never read before."""


class Xid(msgspec.Struct, frozen=True):
    """An error that the driver reports."""

    code: int
    """See NVIDIA's list of XID errors."""
    uuid: str = ""
    """The UUID of the GPU; empty where the driver did not say."""


class GpuSource(Protocol):
    """Reads the GPUs of this machine. Its methods are called from threads, at most two at a time."""

    def survey(self) -> GpuSurvey:
        """Read all GPUs; GpuUnavailable where none can be read."""

    def wait_for_xid(self, seconds: float) -> Xid | None:
        """The next error, or None after `seconds` without one; GpuUnavailable where the driver reports no
        errors."""

    def close(self) -> None:
        """Release the driver."""
