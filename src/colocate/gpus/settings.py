"""How GPUs are shared: which dialects, how a container learns of its GPU, what holds it to its share."""

from enum import StrEnum

import msgspec

from colocate.gpus.dialects import DOSLAB, Dialect


class GpuInjection(StrEnum):
    """How a container gets to its GPUs."""

    ENV = "env"
    """NVIDIA_VISIBLE_DEVICES, which NVIDIA's container runtime reads."""
    CDI = "cdi"
    """Names of CDI devices, which the container runtime reads itself."""


class Unassumed(StrEnum):
    """What the agent does with a pod for which no scheduler has booked a GPU."""

    SERVE = "serve"
    """The agent chooses: the GPU with the least room that fits."""
    REFUSE = "refuse"
    """The pod is refused, and told which scheduler should have booked."""


class HamiCore(msgspec.Struct, frozen=True, kw_only=True):
    """HAMi-core, a library that is preloaded into the container and holds it to its memory and cores."""

    folder: str = "/usr/local/vgpu"
    """Where on the host libvgpu.so and ld.so.preload are; below it, a cache folder for each container."""
    lock: str = "/tmp/vgpulock"
    """The lock file or folder that all containers of the node share."""
    oversubscribe: bool = False
    """Whether memory beyond the GPU's own may be used, from the host's."""


class Gem(msgspec.Struct, frozen=True, kw_only=True):
    """Gem's hook, which asks a manager on the node for computing time."""

    folder: str = "/kubeshare/library"
    """Where the library is, on the host and in the container."""
    library: str = "libgemhook.so.1"
    ip: str = ""
    """Address of the pod manager; a pod's annotation may name another."""
    port: int = 0
    """Port of the pod manager; a pod's annotation may name another."""


class GpuSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of all decisions about GPUs."""

    dialects: tuple[Dialect, ...] = (DOSLAB,)
    injection: GpuInjection = GpuInjection.ENV
    cdi_kind: str = "nvidia.com/gpu"
    """Vendor and class of CDI devices; a device is named by its GPU's UUID."""
    unassumed: Unassumed = Unassumed.SERVE
    hami_core: HamiCore | None = None
    gem: Gem | None = None
    keys: tuple[bytes, ...] = ()
    """Keys that tell bookings of a scheduler of ours from wishes: the first seals, all are believed."""

    def dialect_of(self, resource: str) -> Dialect | None:
        """The dialect that a device plugin of this resource serves."""
        return next((each for each in self.dialects if each.memory == resource), None)
