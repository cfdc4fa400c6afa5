"""GPUs of one machine as facts: what the driver reports about each.

Nothing here assumes a device plugin: a DRA driver publishes the same inventory.
"""

import msgspec

Mebibytes = int
"""GPU memory is counted in MiB, as drivers and every dialect do."""

Cores = int
"""Hundredths of a GPU's computing time; a whole GPU has `CORES`."""

CORES: Cores = 100


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU."""

    uuid: str
    """Its permanent name from NVML: `GPU-…`."""
    index: int
    """Its number on the machine since this boot. Replacing another GPU may change it."""
    memory: Mebibytes
    """All of its memory."""
    model: str = ""
    numa: int | None = None
    """The NUMA node that it is near to; None where that is unknown."""
    mig: bool = False
    """Whether it is in MIG mode; such a GPU is not shared here."""
    healthy: bool = True
    trouble: str = ""
    """Why it is not healthy, in a sentence without a full stop; empty where it is."""

    @property
    def is_shared(self) -> bool:
        """Whether its memory is given out, now or after it recovers."""
        return not self.mig


class GpuInventory(msgspec.Struct, frozen=True):
    """All GPUs of one machine, in order of their index; a GPU that fell off the bus stays, unhealthy, while held."""

    gpus: tuple[Gpu, ...] = ()

    @property
    def shared(self) -> tuple[Gpu, ...]:
        """The GPUs whose memory is given out: all but those in MIG mode."""
        return tuple(gpu for gpu in self.gpus if gpu.is_shared)

    def get(self, uuid: str) -> Gpu | None:
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)

    def at(self, index: int) -> Gpu | None:
        """The GPU with that index."""
        return next((gpu for gpu in self.gpus if gpu.index == index), None)
