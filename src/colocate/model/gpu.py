"""GPUs of one machine as facts: what a driver says of each, whoever asked it.

Nothing here assumes a device plugin: a DRA driver publishes the same inventory.
"""

from collections.abc import Mapping

import msgspec

Mebibytes = int
"""Memory of GPUs is counted in MiB: drivers and every dialect do."""

Cores = int
"""Hundredths of a GPU's computing time; a whole GPU has `CORES`."""

CORES: Cores = 100


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU."""

    uuid: str
    """Its name for life, as NVML gives it: `GPU-…`."""
    index: int
    """Its place on the machine at this boot. A replaced neighbour may change it."""
    memory: Mebibytes
    """All that it has."""
    model: str = ""
    numa: int | None = None
    """The NUMA node that it is near to; None where nobody says."""
    mig: bool = False
    """Whether it is in MIG mode: then it is not shared here."""
    healthy: bool = True
    trouble: str = ""
    """Why it is not healthy, in a sentence without a full stop; empty where it is."""

    @property
    def is_shared(self) -> bool:
        """Whether its memory is given out, now or when it is well again."""
        return not self.mig


class GpuInventory(msgspec.Struct, frozen=True):
    """All GPUs of one machine, in order of their index; a GPU that fell off the bus stays, unhealthy, while held."""

    gpus: tuple[Gpu, ...] = ()

    @property
    def by_uuid(self) -> Mapping[str, Gpu]:
        return {gpu.uuid: gpu for gpu in self.gpus}

    @property
    def shared(self) -> tuple[Gpu, ...]:
        """Those whose memory is given out: not the ones in MIG mode."""
        return tuple(gpu for gpu in self.gpus if gpu.is_shared)

    def get(self, uuid: str) -> Gpu | None:
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)

    def at(self, index: int) -> Gpu | None:
        """The GPU in that place."""
        return next((gpu for gpu in self.gpus if gpu.index == index), None)
