"""The lease by which a node shows that it lives, in the namespace kube-node-lease."""

from colocate.lab.api.objects import Object
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.resources import LEASES
from colocate.lab.api.status import StatusError

NAMESPACE = "kube-node-lease"
DURATION = 40


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
