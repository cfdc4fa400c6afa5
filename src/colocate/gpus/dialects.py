"""How others speak of shared GPUs: resources, units, annotations and environment of each dialect, as tables.

One mechanism under many names: a scheduler writes into a pod's annotations which GPU it has booked and when, and the
device plugin of the node finds the pod by them. Nothing is decided here.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from colocate.errors import UserError
from colocate.model.gpu import Mebibytes

GIBIBYTE: Mebibytes = 1024

COUNT_WISH = "colocate.dev/gpu-count"
"""A pod's annotation, in every dialect: of how many GPUs each of its containers gets the memory that it asks for."""


class GpuName(StrEnum):
    """How an annotation names GPUs."""

    UUID = "uuid"
    INDEX = "index"


class EnvFact(StrEnum):
    """What a variable of a container's environment tells."""

    UUIDS = "uuids"
    """Its GPUs, joined by commas."""
    INDEXES = "indexes"
    """The indexes of its GPUs, joined by commas."""
    POD = "pod"
    """What all containers of the pod asked for together, in units of the resource."""
    CONTAINER = "container"
    """What this container asked for, in units."""
    TOTAL = "total"
    """What one of its GPUs has, in units."""
    UNIT = "unit"
    """MiB in one unit."""


class AnnotationKeys(msgspec.Struct, frozen=True, kw_only=True):
    """One set of annotations that a scheduler writes and a device plugin completes."""

    assume_time: str
    """When the scheduler booked, in nanoseconds since the epoch."""
    assigned: str
    """"false" until the container has its GPU, then "true"."""
    gpus: str
    """Which GPUs: names joined by commas, for containers that get different ones joined by semicolons."""
    named_by: GpuName = GpuName.UUID
    facts: Mapping[str, EnvFact] = {}
    """Further annotations of the set, for those who only read."""

    @property
    def all(self) -> tuple[str, ...]:
        return (self.assume_time, self.assigned, self.gpus, *self.facts)


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """All names that one project uses for shared GPUs."""

    name: str
    memory: str
    """The resource that a device plugin serves: one device is `unit` of memory."""
    unit: Mebibytes
    """MiB in one device, equal in the whole cluster; a setting changes it."""
    cores: str = ""
    """The resource of computing time, in node status alone; empty where the dialect has none."""
    count: str = ""
    """The resource that says how many GPUs the node has; empty where the dialect has none. The scheduler counts a pod
    that asks for it as if it had whole GPUs: `COUNT_WISH` asks for several GPUs without that."""
    annotations: tuple[AnnotationKeys, ...]
    """The sets that are understood. A pod with none of them gets the first."""
    envs: Mapping[str, EnvFact]
    """What a container is told, beside NVIDIA_VISIBLE_DEVICES."""
    scheduler: str = ""
    """The schedulerName that its users write."""
    drains: bool = False
    """Whether nothing new is offered under its names: what pods hold stays theirs, until they end."""

    def keys_of(self, annotations: Mapping[str, str]) -> AnnotationKeys:
        """The set that a pod's annotations speak; the first where they speak none."""
        spoken = (keys for keys in self.annotations if any(key in annotations for key in keys.all))
        return next(spoken, self.annotations[0])

    def in_units(self, memory: Mebibytes) -> int:
        """How many whole devices that much memory is."""
        return memory // self.unit


COLOCATE = Dialect(
    name="colocate",
    memory="colocate.dev/gpu-memory",
    # By measurement: 8 GPUs of 192 GiB are 6144 devices, which a kubelet sorts out in seconds (docs/gpus.md).
    unit=256,
    cores="colocate.dev/gpu-cores",
    annotations=(
        AnnotationKeys(
            assume_time="colocate.dev/gpu-assume-time",
            assigned="colocate.dev/gpu-assigned",
            gpus="colocate.dev/gpu-uuid",
        ),
    ),
    envs={
        "COLOCATE_GPU_UUID": EnvFact.UUIDS,
        "COLOCATE_GPU_MEMORY_POD": EnvFact.POD,
        "COLOCATE_GPU_MEMORY_CONTAINER": EnvFact.CONTAINER,
        "COLOCATE_GPU_MEMORY_TOTAL": EnvFact.TOTAL,
        "COLOCATE_GPU_MEMORY_UNIT_MIB": EnvFact.UNIT,
    },
    scheduler="colocate-gpu-scheduler",
)

DOSLAB = Dialect(
    name="doslab",
    memory="doslab.io/gpu-memory",
    unit=1,
    cores="doslab.io/gpu-core",
    count="doslab.io/gpu-count",
    annotations=(
        AnnotationKeys(
            assume_time="doslab.io/gpu-assume-time",
            assigned="doslab.io/gpu-assigned",
            gpus="doslab.io/gpu-uuid",
        ),
        AnnotationKeys(
            assume_time="DOSLAB_IO_GPU_ASSUME_TIME",
            assigned="DOSLAB_IO_GPU_ASSIGNED",
            gpus="DOSLAB_IO_GPU_UUID",
        ),
    ),
    envs={
        "DOSLAB_IO_GPU_UUID": EnvFact.UUIDS,
        "DOSLAB_IO_GPU_RESOURCE_USED_BY_POD": EnvFact.POD,
        "DOSLAB_IO_GPU_RESOURCE_USED_BY_CONTAINER": EnvFact.CONTAINER,
        "DOSLAB_IO_GPU_RESOURCE_TOTAL": EnvFact.TOTAL,
    },
    scheduler="doslab-gpu-scheduler",
)

GPUSHARE = Dialect(
    name="gpushare",
    memory="aliyun.com/gpu-mem",
    unit=GIBIBYTE,
    count="aliyun.com/gpu-count",
    annotations=(
        AnnotationKeys(
            assume_time="ALIYUN_COM_GPU_MEM_ASSUME_TIME",
            assigned="ALIYUN_COM_GPU_MEM_ASSIGNED",
            gpus="ALIYUN_COM_GPU_MEM_IDX",
            named_by=GpuName.INDEX,
            facts={"ALIYUN_COM_GPU_MEM_POD": EnvFact.POD, "ALIYUN_COM_GPU_MEM_DEV": EnvFact.TOTAL},
        ),
    ),
    envs={
        "ALIYUN_COM_GPU_MEM_IDX": EnvFact.INDEXES,
        "ALIYUN_COM_GPU_MEM_POD": EnvFact.POD,
        "ALIYUN_COM_GPU_MEM_CONTAINER": EnvFact.CONTAINER,
        "ALIYUN_COM_GPU_MEM_DEV": EnvFact.TOTAL,
    },
)

VOLCANO = Dialect(
    name="volcano",
    memory="volcano.sh/gpu-memory",
    unit=1,
    count="volcano.sh/gpu-number",
    annotations=(
        AnnotationKeys(
            assume_time="volcano.sh/predicate-time",
            assigned="volcano.sh/gpu-assigned",
            gpus="volcano.sh/gpu-index",
            named_by=GpuName.INDEX,
        ),
    ),
    envs={
        "VOLCANO_GPU_ALLOCATED": EnvFact.CONTAINER,
        "VOLCANO_GPU_MEMORY_TOTAL": EnvFact.TOTAL,
    },
    scheduler="volcano",
)

DIALECTS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in (COLOCATE, DOSLAB, GPUSHARE, VOLCANO)}

WRITTEN_BESIDE: Mapping[str, str] = {
    name: dialect.memory for dialect in DIALECTS.values() for name in (dialect.count, dialect.cores) if name
}
"""Resources that an agent writes into node status, by their name: the one that its plugin registers."""


def dialect(name: str, unit: Mebibytes | None = None, *, drains: bool = False) -> Dialect:
    """The dialect of that name, in another unit where one is given; UserError where there is none such."""
    found = DIALECTS.get(name)
    if found is None:
        raise UserError(f"there is no GPU dialect {name!r}; known are {', '.join(DIALECTS)}")
    if drains:
        found = msgspec.structs.replace(found, drains=True)
    if unit is None:
        return found
    if unit < 1:
        raise UserError(f"a unit of {unit} MiB of GPU memory is impossible; use 1 or more")
    return msgspec.structs.replace(found, unit=unit)
