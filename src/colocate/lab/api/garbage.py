"""The garbage collector: deletes objects whose owners are gone, and handles the dependents of objects in deletion.

Owners of kinds that are not served here count as existing.
"""

from colocate.lab.api import resources
from colocate.lab.api.changes import Stored, StoreKey
from colocate.lab.api.deletion import FOREGROUND, ORPHAN, DeleteOptions, delete
from colocate.lab.api.objects import Object, is_terminating, metadata, uid_of
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.resources import ServedResource
from colocate.lab.api.store import OWNER


def collect_dependents(registry: ObjectRegistry, uid: str) -> None:
    """Collect the dependents of the object with this uid."""
    for resource, stored in _dependents(registry, uid):
        collect(registry, resource, stored)


def collect(registry: ObjectRegistry, resource: ServedResource, stored: Stored) -> None:
    """Delete an object whose owners are all gone; otherwise remove its references to missing owners."""
    owners: list[Object] = metadata(stored.body).get("ownerReferences") or []
    left = [owner for owner in owners if _exists(registry, owner, stored.key.namespace)]
    if len(left) == len(owners):
        return
    if left:
        registry.force(resource, stored, lambda body: _set_owners(body, left))
    elif not is_terminating(stored.body):
        delete(registry, resource, stored.key.namespace, stored.key.name)


def see_to_finalizers(registry: ObjectRegistry, resource: ServedResource, stored: Stored) -> None:
    """Finish a deletion that orphans the dependents, or that waits for them."""
    held = metadata(stored.body).get("finalizers") or []
    if not is_terminating(stored.body) or not {FOREGROUND, ORPHAN} & set(held):
        return
    uid = uid_of(stored.body)
    dependents = _dependents(registry, uid)
    if ORPHAN in held:
        for kind, dependent in dependents:
            registry.force(kind, dependent, lambda body: _set_owners(body, _without(body, uid)))
        _drop_finalizer(registry, resource, stored, ORPHAN)
        return
    for kind, dependent in dependents:
        if not is_terminating(dependent.body):
            # A dependent with its own dependents has to wait for them as well.
            waits = bool(_dependents(registry, uid_of(dependent.body)))
            options = DeleteOptions(propagationPolicy="Foreground" if waits else "Background")
            delete(registry, kind, dependent.key.namespace, dependent.key.name, options)
    if not _dependents(registry, uid):
        _drop_finalizer(registry, resource, stored, FOREGROUND)


def _dependents(registry: ObjectRegistry, uid: str) -> list[tuple[ServedResource, Stored]]:
    return [
        (resource, stored)
        for resource in resources.stored()
        for stored in registry.store.lookup(resource.storage, OWNER, uid)
    ]


def _exists(registry: ObjectRegistry, owner: Object, namespace: str) -> bool:
    resource = resources.of_kind(owner["apiVersion"], owner["kind"])
    if resource is None:
        return True
    place = namespace if resource.namespaced else ""
    found = registry.store.get(StoreKey(resource.storage, place, owner["name"]))
    return found is not None and uid_of(found.body) == owner["uid"]


def _without(body: Object, uid: str) -> list[Object]:
    owners: list[Object] = metadata(body).get("ownerReferences") or []
    return [owner for owner in owners if owner["uid"] != uid]


def _set_owners(body: Object, owners: list[Object]) -> None:
    body["metadata"]["ownerReferences"] = owners


def _drop_finalizer(registry: ObjectRegistry, resource: ServedResource, stored: Stored, name: str) -> None:
    current = registry.store.get(stored.key)
    if current is None:
        return

    def drop(body: Object) -> None:
        held = metadata(body).get("finalizers") or []
        body["metadata"]["finalizers"] = [one for one in held if one != name]

    registry.force(resource, current, drop)
