"""What a kubelet writes of its node at every sync: the lease that shows that it lives, its capacity and allocatable.

Keys that nobody reports stay as they are: that is why an extended resource, once there, goes only when somebody
patches it away, and why one that was patched in by hand survives.
"""

from collections.abc import Mapping

from colocate.lab.api.objects import Object
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.resources import LEASES
from colocate.lab.api.status import StatusError

NAMESPACE = "kube-node-lease"
DURATION = 40


Amounts = dict[str, str]


def renew(registry: ObjectRegistry, node: str, now: str) -> None:
    """Make or renew a node's lease."""
    moment = now.replace("Z", ".000000Z")
    spec = {"holderIdentity": node, "leaseDurationSeconds": DURATION, "renewTime": moment}

    def change(body: Object) -> None:
        body["spec"] = spec

    try:
        if registry.find(LEASES, NAMESPACE, node) is None:
            registry.create(LEASES, NAMESPACE, {"metadata": {"name": node}, "spec": spec})
        else:
            registry.modify(LEASES, NAMESPACE, node, change)
    except StatusError:
        pass  # Its namespace was deleted; a lease is no reason to stop.


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
