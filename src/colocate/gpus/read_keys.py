"""What is read of a pod for GPUs: which annotations, resources and variables, and how many characters of each.

Tenants write the rest at will, and it is never decoded. What is missing here looks as if no pod had it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from colocate.gpus.dialects import COUNT_WISH, DIALECTS
from colocate.model.bounded import keys_alone
from colocate.model.quantity import Quantities

SEAL = "colocate.dev/gpu-seal"
"""The annotation with the seal of a scheduler of ours."""
MODELS = "colocate.dev/gpu-models"
"""Models of which a pod takes any, joined by bars."""
GEM_IP = "doslab.io/gem-scheduler-ip"
GEM_PORT = "doslab.io/gem-podmanager-port"
"""Annotations that name the pod manager of one pod."""
MIRROR = "kubernetes.io/config.mirror"
"""On a static pod's mirror in the API: the uid by which the kubelet knows the pod itself. Anybody can write it."""

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
"""What NVIDIA's container runtime reads. A pod's own env comes after it and may override it."""

LIMITS = ("CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT")
"""How variables begin that HAMi-core reads its limits from: one for all GPUs, or one for each."""
LOOSENING = frozenset(
    {
        *("CUDA_OVERSUBSCRIBE", "CUDA_REDIRECT", "CUDA_TASK_PRIORITY", "CUDA_DISABLE_CONTROL"),
        "GPU_CORE_UTILIZATION_POLICY",
    }
)
"""Variables that make HAMi-core hold a container to less."""

LONGEST_LIST = 4096
"""Characters of a list of GPUs; the UUIDs of a hundred."""
LONGEST_MODELS = 512
_LONGEST_WORD = 256
"""Characters of a time, a number, a seal."""
_MOST_GPUS = 64

_SETS = [keys for each in DIALECTS.values() for keys in each.annotations]
LONGEST: Mapping[str, int] = {
    **{key: _LONGEST_WORD for keys in _SETS for key in keys.all},
    **{keys.gpus: LONGEST_LIST for keys in _SETS},
    **dict.fromkeys((SEAL, COUNT_WISH, GEM_IP, GEM_PORT, MIRROR), _LONGEST_WORD),
    MODELS: LONGEST_MODELS,
}
"""By annotation, the characters that are kept; of a text that is longer, one more."""

ENVS = frozenset(
    {
        *(VISIBLE, "NVIDIA_DRIVER_CAPABILITIES"),
        *(name for each in DIALECTS.values() for name in each.envs),
        *("CUDA_DEVICE_MEMORY_SHARED_CACHE", *LIMITS, *LOOSENING),
        *(f"{name}_{place}" for name in LIMITS for place in range(_MOST_GPUS)),
        *("LD_PRELOAD", "POD_MANAGER_IP", "POD_MANAGER_PORT", "POD_NAME"),
    }
)
"""Variables of a container's own environment that go before what it is given, or matter beside it."""

if TYPE_CHECKING:
    GpuAnnotations = Mapping[str, str]
    GpuQuantities = Quantities
else:
    GpuAnnotations = keys_alone(LONGEST)
    GpuQuantities = keys_alone(
        {
            *("cpu", "memory", COUNT_WISH),
            *(name for each in DIALECTS.values() for name in (each.memory, each.cores, each.count) if name),
        },
        str | int | float,
    )
