"""What a unit costs a kubelet: how many devices it makes, and for how long they hold up everything else.

From 1.36 on a kubelet tells the health of devices in the status of pods. It looks every device that is new or whose
health has changed up among all ids that containers hold, and does nothing else meanwhile. After a restart every
device is new. So what counts is devices times ids that could be held, over all resources of the node.
"""

import re
from collections.abc import Sequence

import msgspec

from colocate.gpus.dialects import COLOCATE, Dialect
from colocate.model.figures import amount, count
from colocate.model.gpu import Gpu, Mebibytes

DEAR_FROM = (1, 36)
"""The first kubelet that looks devices up."""
MOST_LOOKUPS = 100_000_000
"""Beyond this nothing is offered: about as long as a plugin waits for a kubelet that it registers with."""
SECONDS_EACH = 130e-9
"""For one device and one id that is held; measured, see docs/gpus.md."""

KubeletVersion = tuple[int, int]
_VERSION = re.compile(r"v?(\d{1,3})\.(\d{1,3})(?:[^\d].*)?", re.ASCII | re.DOTALL)


def kubelet_version(text: str) -> KubeletVersion | None:
    """Major and minor of what a node's status says; None where it says none."""
    match = _VERSION.fullmatch(text[:64])
    return (int(match[1]), int(match[2])) if match else None


class DeviceCost(msgspec.Struct, frozen=True):
    """What the devices of a node cost its kubelet."""

    devices: int = 0
    """Of all resources."""
    held: int = 0
    """Ids that pods could hold at one time: memory that one dialect gives is gone in the others."""

    @property
    def lookups(self) -> int:
        return self.devices * self.held

    @property
    def seconds(self) -> float:
        """For how long a kubelet that restarts does nothing else, at most."""
        return self.lookups * SECONDS_EACH

    @property
    def is_dear(self) -> bool:
        return self.lookups > MOST_LOOKUPS


def device_cost(gpus: Sequence[Gpu], dialects: Sequence[Dialect], others: int = 0) -> DeviceCost:
    """Of the resources that are offered, beside `others`: devices of other resources, such as blocks of memory.

    One that drains is left out: what pods hold of it cannot be taken back.
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


def why_too_dear(gpus: Sequence[Gpu], dialects: Sequence[Dialect], others: int = 0) -> str:
    """Why so many devices stop a kubelet from 1.36 on, with the ways out; empty where they do not."""
    cost = device_cost(gpus, dialects, others)
    if not cost.is_dear:
        return ""
    offered = [dialect for dialect in dialects if not dialect.drains]
    units = ", ".join(f"{dialect.memory} in {amount(dialect.unit << 20)}" for dialect in offered)
    beside = f" beside {count(others, 'device')} of other resources" if others else ""
    unit = bearable_unit(gpus, others)
    return (
        f"{units}{beside}: {cost.devices} devices, of which pods could hold {cost.held}, would keep a kubelet from "
        f"1.36 on busy for up to {cost.seconds:.0f} s at every restart, while no pod starts; serve {COLOCATE.memory} "
        f"with a unit of {max(unit, COLOCATE.unit)}Mi in the whole cluster in place of it ('colocate gpu units' "
        "prints what manifests write then), let the finer one drain (drain: true in gpus.dialects), or share GPUs by "
        "DRA"
    )
