"""Pods and nodes of the API, as much of them as the GPU scheduler reads."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from colocate.gpus import ANNOUNCED, GpuContainer, GpuPod, GpuQuantities
from colocate.model.bounded import is_too_long, keys_alone, replace_field, shortened
from colocate.model.pod import peak
from colocate.model.quantity import Quantities, stated

_MEBIBYTE = 1 << 20


class _Read(msgspec.Struct, frozen=True, rename="camel"):
    pass


class _Asked(_Read, frozen=True):
    limits: GpuQuantities = {}
    requests: GpuQuantities = {}


class PackedContainer(GpuContainer, frozen=True):
    """A container, with what it asks for of CPU and memory."""

    resources: _Asked = _Asked()  # type: ignore[assignment]  # it has all that the other has

    @property
    def cpu(self) -> int:
        return stated(self.resources.requests).cpu or 0

    @property
    def memory(self) -> int:
        return stated(self.resources.requests).memory or 0


class _Spec(_Read, frozen=True):
    containers: tuple[PackedContainer, ...] = ()
    init_containers: tuple[PackedContainer, ...] = ()
    node_name: str = ""
    scheduler_name: str = ""


class PackedPod(GpuPod, frozen=True):
    """A pod, with what is asked of its node beside GPUs."""

    spec: _Spec = _Spec()  # type: ignore[assignment]  # it has all that the other has

    @property
    def cpu(self) -> int:
        """Thousandths of a CPU."""
        return self._peak("cpu")

    @property
    def memory(self) -> int:
        """MiB."""
        return -(-self._peak("memory") // _MEBIBYTE)

    def _peak(self, what: str) -> int:
        return peak(
            (getattr(each, what) for each in self.spec.containers),
            [(getattr(each, what), each.restart_policy == "Always") for each in self.spec.init_containers],
        )


_LONGEST = {ANNOUNCED: 64 << 10}
"""Characters of an annotation that are kept; of one that is longer, one more."""

if TYPE_CHECKING:
    _Annotations = Mapping[str, str]
    _Allocatable = Quantities
else:
    _Annotations = keys_alone(_LONGEST)
    _Allocatable = keys_alone(("cpu", "memory"), str | int | float)


class _NodeMetadata(_Read, frozen=True):
    name: str = ""
    annotations: _Annotations = {}

    def __post_init__(self) -> None:
        if is_too_long(self.annotations, _LONGEST):
            replace_field(self, "annotations", shortened(self.annotations, _LONGEST))


class _NodeStatus(_Read, frozen=True):
    allocatable: _Allocatable = {}


class PackedNode(_Read, frozen=True):
    """A node, as much of it as packing needs."""

    metadata: _NodeMetadata = _NodeMetadata()
    status: _NodeStatus = _NodeStatus()

    @property
    def cpu(self) -> int:
        return stated(self.status.allocatable).cpu or 0

    @property
    def memory(self) -> int:
        """MiB."""
        return (stated(self.status.allocatable).memory or 0) // _MEBIBYTE
