"""GPUs as something on this machine tells of them: the interface, and what travels over it.

`nvml` asks NVIDIA's driver, `mock_gpus` makes them up. Nothing is judged here: whether a GPU is fit for pods is
decided in `gpus`. Every call may block, and one that a sick GPU holds up may never return: callers use a thread.
"""

from typing import Protocol

import msgspec

from colocate.errors import Unavailable
from colocate.model.memory import Bytes


class GpuUnavailable(Unavailable):
    """Nothing can be said of any GPU now; says why."""


class GpuProcess(msgspec.Struct, frozen=True):
    """A process that has memory of a GPU."""

    pid: int
    """In the PID namespace of the host."""
    memory: Bytes | None
    """None where the driver does not tell."""


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU at one moment."""

    uuid: str
    index: int
    """Its place in the driver's order; another after a restart of the machine, perhaps."""
    model: str = ""
    memory: Bytes = 0
    """All that it has."""
    used: Bytes | None = None
    """By whomever; None where it was not told."""
    numa: int | None = None
    mig: bool = False
    """Whether it is split into instances, which are devices of their own."""
    processes: tuple[GpuProcess, ...] | None = None
    """None where the driver does not tell."""
    problem: str = ""
    """Why it does not answer; what it is, is what was heard before. Empty where it answers."""


class GpuSurvey(msgspec.Struct, frozen=True):
    """Every GPU that there is."""

    gpus: tuple[GpuReading, ...]
    unknown: tuple[str, ...] = ()
    """A sentence for each that answers nothing, and that nobody has ever heard of."""


class Xid(msgspec.Struct, frozen=True):
    """The driver tells of an error."""

    code: int
    """See NVIDIA's list of XID errors."""
    uuid: str = ""
    """Empty where the driver did not say which GPU it is."""


class GpuSource(Protocol):
    """Tells of the GPUs of this machine. Its methods are called from threads, two at a time at most."""

    def survey(self) -> GpuSurvey:
        """All of them now; GpuUnavailable where nothing can be said of any."""

    def wait_for_xid(self, seconds: float) -> Xid | None:
        """The next error, or None after so many seconds without one; GpuUnavailable where none can be heard."""

    def close(self) -> None:
        """Let go of the driver."""
