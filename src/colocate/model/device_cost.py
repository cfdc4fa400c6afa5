"""What devices cost a kubelet: how many there are, and for how long they hold up everything else.

From 1.36 on a kubelet tells the health of devices in the status of pods. It looks every device that is new or whose
health has changed up among all ids that containers hold, and does nothing else meanwhile. After a restart every
device is new. So what counts is devices times ids that could be held, over all resources of the node.
"""

import re
from collections.abc import Sequence

import msgspec

from colocate.model.figures import count

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


class NodeKubelet(msgspec.Struct, frozen=True):
    """What a node's status says of its kubelet."""

    version: KubeletVersion | None = None
    heartbeat: float = 0.0
    """When the kubelet wrote the status last, in seconds since the epoch, cut to whole ones."""


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


class DeviceOffer(msgspec.Struct, frozen=True):
    """The devices that an agent may offer of one kind."""

    what: str
    """Their resources, in a sentence."""
    cost: DeviceCost
    remedy: str
    """How to offer fewer, in a sentence."""


def cost_of(offers: Sequence[DeviceOffer]) -> DeviceCost:
    """Of all offers of an agent together."""
    return DeviceCost(sum(offer.cost.devices for offer in offers), sum(offer.cost.held for offer in offers))


def why_too_dear(offers: Sequence[DeviceOffer]) -> str:
    """Why so many devices stop a kubelet from 1.36 on, with the way out; empty where they do not."""
    cost = cost_of(offers)
    if not cost.is_dear:
        return ""
    most, *others = sorted(offers, key=lambda offer: -offer.cost.devices)
    beside = ", ".join(f"{count(each.cost.devices, 'device')} of {each.what}" for each in others)
    return (
        f"{most.what}{beside and f' beside {beside}'}: {cost.devices} devices, of which pods could hold {cost.held}, "
        f"would keep a kubelet from 1.36 on busy for up to {cost.seconds:.0f} s at every restart, while no pod "
        f"starts; {most.remedy}"
    )
