"""A node's capacity and allocatable after a sync, by the kubelet's rules: pure.

Keys that nobody reports stay as they are: that is why an extended resource, once there, goes only when
somebody patches it away, and why one that was patched in by hand survives.
"""

from collections.abc import Mapping

Amounts = dict[str, str]


def synced(
    capacity: Mapping[str, str],
    device_capacity: Mapping[str, int],
    device_allocatable: Mapping[str, int],
) -> tuple[Amounts, Amounts]:
    """The status' capacity as it is now, and what the device manager reports, give the new status.

    Allocatable follows capacity, so a key that was patched out of capacity leaves allocatable too.
    """
    new = dict(capacity) | {name: str(count) for name, count in device_capacity.items()}
    usable = {name: str(count) for name, count in device_allocatable.items()}
    return new, new | usable


def zeroed(capacity: Mapping[str, str]) -> Amounts:
    """What a kubelet that finds no checkpoint makes of a node: every extended resource is 0."""
    return {name: "0" if "/" in name else amount for name, amount in capacity.items()}
