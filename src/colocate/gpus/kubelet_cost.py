"""What a unit of GPU memory costs a kubelet: how many devices it makes, and which unit a kubelet can bear."""

from collections.abc import Sequence

import msgspec

from colocate.gpus.dialects import COLOCATE, Dialect
from colocate.model.device_cost import DeviceCost, DeviceOffer
from colocate.model.figures import amount
from colocate.model.gpu import Gpu, Mebibytes


def device_cost(gpus: Sequence[Gpu], dialects: Sequence[Dialect], others: int = 0) -> DeviceCost:
    """The cost of the offered resources with `others`: devices of other resources, such as blocks of memory.

    A resource that drains is left out: what pods hold of it cannot be taken back.
    """
    each = [devices_of(gpus, dialect.unit) for dialect in dialects if not dialect.drains]
    return DeviceCost(sum(each) + others, max(each, default=0) + others)


def devices_of(gpus: Sequence[Gpu], unit: Mebibytes) -> int:
    return sum(gpu.memory // unit for gpu in gpus)


def bearable_unit(gpus: Sequence[Gpu], others: int = 0) -> Mebibytes:
    """The smallest unit, in powers of two, in which one dialect is not dear; the largest GPU where there is none."""
    most, unit = max((gpu.memory for gpu in gpus), default=1), 1
    one = msgspec.structs.replace(COLOCATE, unit=unit)
    while unit < most and device_cost(gpus, [one], others).is_dear:
        unit *= 2
        one = msgspec.structs.replace(COLOCATE, unit=unit)
    return unit


def gpu_offer(gpus: Sequence[Gpu], dialects: Sequence[Dialect], others: int = 0) -> DeviceOffer:
    """All slices of these GPUs, for an agent that offers so many `others`."""
    offered = [dialect for dialect in dialects if not dialect.drains]
    unit = bearable_unit(gpus, others)
    return DeviceOffer(
        ", ".join(f"{dialect.memory} in {amount(dialect.unit << 20)}" for dialect in offered),
        device_cost(gpus, dialects),
        f"serve {COLOCATE.memory} with a unit of {max(unit, COLOCATE.unit)}Mi in the whole cluster in place of it "
        "('colocate gpu units' prints what manifests write then), let the finer one drain (drain: true in "
        "gpus.dialects), or share GPUs by DRA",
    )
