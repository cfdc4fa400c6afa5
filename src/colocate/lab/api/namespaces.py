"""The namespace controller: creates the default service account, and empties a namespace before its removal."""

from colocate.lab.api import resources
from colocate.lab.api.changes import Stored
from colocate.lab.api.deletion import delete
from colocate.lab.api.objects import Object, is_terminating
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.resources import NAMESPACES, SERVICE_ACCOUNTS


def carry_out(registry: ObjectRegistry, stored: Stored) -> None:
    """Reconcile a namespace."""
    name = stored.key.name
    if not is_terminating(stored.body):
        if registry.find(SERVICE_ACCOUNTS, name, "default") is None:
            registry.create(SERVICE_ACCOUNTS, name, {"metadata": {"name": "default"}})
        return
    if _clear(registry, name):
        return
    current = registry.find(NAMESPACES, "", name)
    if current is not None:
        registry.force(NAMESPACES, current, _let_go)


def _clear(registry: ObjectRegistry, namespace: str) -> int:
    """Delete everything in a namespace; returns how many objects are left, such as pods that have to stop."""
    left = 0
    for resource in resources.stored():
        if not resource.namespaced:
            continue
        for stored in registry.store.items(resource.storage, namespace):
            if is_terminating(stored.body) or not delete(registry, resource, namespace, stored.key.name).gone:
                left += 1
    return left


def _let_go(body: Object) -> None:
    body["spec"]["finalizers"] = []
