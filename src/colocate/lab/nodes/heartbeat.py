"""What a kubelet writes about its node at every sync: the lease, capacity and allocatable.

Resources that no plugin reports stay unchanged: an extended resource is removed only by a patch, and one that was
patched in by hand stays.
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
    """Create or renew a node's lease."""
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
        pass  # Its namespace was deleted; the node continues without a lease.


def synced(
    capacity: Mapping[str, str],
    device_capacity: Mapping[str, int],
    device_allocatable: Mapping[str, int],
) -> tuple[Amounts, Amounts]:
    """The new capacity and allocatable, from the current status and the device manager's report.

    Allocatable follows capacity: a resource that was patched out of capacity is removed from allocatable too.
    """
    new = dict(capacity) | {name: str(count) for name, count in device_capacity.items()}
    usable = {name: str(count) for name, count in device_allocatable.items()}
    return new, new | usable


def zeroed(capacity: Mapping[str, str]) -> Amounts:
    """The capacity after a kubelet found no checkpoint: every extended resource is 0."""
    return {name: "0" if "/" in name else amount for name, amount in capacity.items()}
