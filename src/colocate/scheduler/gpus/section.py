"""What `colocate scheduler` can be told of GPUs: the section `gpus` of its configuration."""

from enum import StrEnum
from pathlib import Path

from colocate.config.words import Problem
from colocate.errors import UserError
from colocate.gpus import COLOCATE, DIALECTS, Dialect, dialect
from colocate.gpus.agent.key_file import read_keys
from colocate.gpus.agent.section import why_no_unit
from colocate.model.values import Seconds, Section, Size


class GpuPolicy(StrEnum):
    """How a GPU is chosen; named as in `colocate.gpus.packing`, which is loaded only where it is needed."""

    OURS = "ours"
    FGD = "fgd"
    BEST_FIT = "best-fit"
    SPREAD = "spread"


class GpuLease(Section, frozen=True):
    """The lease that decides which of several replicas binds."""

    namespace: str = "kube-system"
    name: str = "colocate-gpu-scheduler"
    duration: Seconds = Seconds(15)
    """A replica that has not renewed it for so long is taken for gone."""


class GpuKeySecret(Section, frozen=True):
    """Where the key of sealed bookings is made and found, where no file is named. Agents mount it."""

    namespace: str = "kube-system"
    name: str = "colocate-gpu-key"
    """Empty: bookings are not sealed."""


class SchedulerDialect(Section, frozen=True):
    """One way in which pods ask for GPUs."""

    name: str = COLOCATE.name
    unit: Size | None = None
    """What one unit of its memory resource stands for, as the agents are told; the dialect's own unless stated."""


class GpuSection(Section, frozen=True):
    """How GPUs are chosen, where `act` has gpus."""

    policy: GpuPolicy = GpuPolicy.OURS
    dialects: tuple[SchedulerDialect, ...] = (SchedulerDialect(),)
    key_file: Path | None = None
    """The file with the key that agents know bookings of ours by, and have, too. Not given: the Secret has it."""
    key_secret: GpuKeySecret = GpuKeySecret()
    hold: Seconds = Seconds(10)
    """For how long the best GPU is kept for a pod between the answer and the bind."""
    doubt: Seconds = Seconds(60)
    """For how long the GPU is kept where it is unknown whether a bind came through."""
    lease: GpuLease = GpuLease()

    def spoken(self) -> tuple[Dialect, ...]:
        """The dialects, as tables."""
        return tuple(dialect(one.name, None if one.unit is None else one.unit >> 20) for one in self.dialects)

    def keys(self) -> tuple[bytes, ...]:
        """The keys of the file, the one that seals first; a UserError where it has none."""
        if self.key_file is None:
            return ()
        return read_keys(self.key_file, "gpus.keyFile")


def check_gpus(gpus: GpuSection) -> None:
    """Raise a Problem where GPUs could not be chosen with this."""
    if not gpus.dialects:
        raise Problem("gpus.dialects", f"the list is empty; name at least one of {', '.join(DIALECTS)}")
    for index, one in enumerate(gpus.dialects):
        if problem := why_no_unit(one.unit):
            raise Problem(f"gpus.dialects[{index}].unit", problem)
    try:
        spoken = gpus.spoken()
    except UserError as error:
        raise Problem("gpus.dialects", str(error)) from None
    if len({one.memory for one in spoken}) < len(spoken):
        raise Problem("gpus.dialects", "a dialect is named twice; name each once")
    for name, seconds, least in (("hold", gpus.hold, 0.1), ("doubt", gpus.doubt, 1.0)):
        if not least <= seconds <= 600:
            raise Problem(f"gpus.{name}", f"{seconds:g}s is out of range; choose {least:g}s to 10m")
    if not 1 <= gpus.lease.duration <= 600:
        raise Problem("gpus.lease.duration", f"{gpus.lease.duration:g}s is out of range; choose 1s to 10m")
