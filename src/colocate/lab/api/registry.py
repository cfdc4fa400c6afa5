"""Applies the API's rules to every write: defaults, validation, and fields that a write must not change.

All writes pass here, from the HTTP server and from the controllers in the same process. Objects in and out are
bare. Nothing here knows HTTP, users or how objects are rendered.
"""

import random
import uuid
from collections.abc import Callable

from colocate.clock import Clock
from colocate.lab.api import defaults, shapes, validation
from colocate.lab.api.changes import Stored, StoreKey
from colocate.lab.api.managed_fields import FieldWriter, recorded
from colocate.lab.api.objects import (
    Object,
    encode,
    is_terminating,
    metadata,
    name_of,
    namespace_of,
    rfc3339,
    uid_of,
)
from colocate.lab.api.resources import NAMESPACES, NODES, ServedResource
from colocate.lab.api.status import (
    StatusCause,
    already_exists,
    bad_request,
    conflict,
    forbidden,
    modified,
    not_found,
)
from colocate.lab.api.store import AlreadyThere, NotThere, ObjectStore, Stale

_SERVER_OWNED = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "resourceVersion",
    "generateName",
    "managedFields",
)
_PARTS = {"status": "status", "finalize": "spec"}
"""The part of an object that each subresource may change."""

_NEVER_KEPT = ("selfLink", "clusterName")


def key_of(resource: ServedResource, namespace: str, name: str) -> StoreKey:
    return StoreKey(resource.storage, namespace if resource.namespaced else "", name)


_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
"""No vowels, so that names do not spell words."""


class Identities:
    """Generates uids and name suffixes; a test passes a seed to make them predictable."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)

    def uid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def suffix(self) -> str:
        return "".join(self._random.choices(_SUFFIX, k=5))


class ObjectRegistry:
    """Reads and writes of objects, by the rules of their kinds."""

    def __init__(self, store: ObjectStore, clock: Clock, identities: Identities | None = None) -> None:
        self.store = store
        self.clock = clock
        self.identities = identities or Identities()

    def get(self, resource: ServedResource, namespace: str, name: str) -> Stored:
        found = self.store.get(key_of(resource, namespace, name))
        if found is None:
            raise not_found(resource.qualified, name)
        return found

    def find(self, resource: ServedResource, namespace: str, name: str) -> Stored | None:
        return self.store.get(key_of(resource, namespace, name))

    def create(
        self,
        resource: ServedResource,
        namespace: str,
        body: Object,
        dry_run: bool = False,
        writer: FieldWriter | None = None,
    ) -> Stored:
        """Create an object. The body is copied."""
        shapes.check(resource, body)
        new = self._with_identity(resource, namespace, defaults.without_nulls(body))
        name = name_of(new)
        key = key_of(resource, namespace, name)
        if self.store.get(key) is not None:
            raise already_exists(resource.qualified, name)
        self._check_namespace(resource, namespace, name)
        defaults.on_create(resource.storage, new, self.store)
        validation.check_new(resource, new)
        self._sign(resource, {}, new, writer)
        if dry_run:
            return Stored(key, 0, new, encode(new))
        try:
            return self.store.create(key, new)
        except AlreadyThere:
            raise already_exists(resource.qualified, name) from None

    def update(
        self,
        resource: ServedResource,
        namespace: str,
        name: str,
        body: Object,
        subresource: str = "",
        dry_run: bool = False,
        writer: FieldWriter | None = None,
    ) -> Stored:
        """Update an object; without a difference, no version is written. The body is copied."""
        current = self.get(resource, namespace, name)
        self._check_versions(resource, current, body)
        shapes.check(resource, body)
        part = _PARTS.get(subresource)
        given = body if part is None else {key: body[key] for key in ("metadata", part) if key in body}
        new = self._merged(resource, current.body, defaults.without_nulls(given), part)
        defaults.on_write(resource.storage, new)
        validation.check_change(resource, new, current.body)
        if resource.generation and new.get("spec") != current.body.get("spec"):
            new["metadata"]["generation"] = int(metadata(new).get("generation") or 0) + 1
        self._sign(resource, current.body, new, writer)
        return self._replace(resource, current, new, dry_run)

    def modify(
        self,
        resource: ServedResource,
        namespace: str,
        name: str,
        change: Callable[[Object], Object | None],
        subresource: str = "",
        dry_run: bool = False,
    ) -> Stored:
        """Update an object by a function that changes a copy of it in place."""
        current = self.get(resource, namespace, name).copy()
        changed = change(current)
        return self.update(
            resource, namespace, name, current if changed is None else changed, subresource, dry_run
        )

    def force(
        self,
        resource: ServedResource,
        current: Stored,
        change: Callable[[Object], None],
        writer: FieldWriter | None = None,
    ) -> Stored:
        """Write fields that no request may, such as deletion marks or a pod's node."""
        new = current.copy()
        change(new)
        self._sign(resource, current.body, new, writer)
        return self._replace(resource, current, new, dry_run=False)

    def _sign(self, resource: ServedResource, old: Object, new: Object, writer: FieldWriter | None) -> None:
        """Record the manager of a change in managedFields; the server's own writes are not recorded."""
        if writer is None or resource is not NODES:
            return
        entries = metadata(old).get("managedFields") or []
        signed = recorded(entries, old, new, writer, rfc3339(self.clock.time()))
        if signed:
            new["metadata"]["managedFields"] = signed
        else:
            new["metadata"].pop("managedFields", None)

    def _replace(self, resource: ServedResource, current: Stored, new: Object, dry_run: bool) -> Stored:
        if new == current.body:
            return current
        if dry_run:
            return Stored(current.key, current.revision, new, encode(new))
        try:
            with self.store.transaction():
                stored = self.store.replace(current.key, new, current.revision)
                if is_finished(stored.body):
                    return self.store.remove(current.key)
            return stored
        except Stale:
            raise modified(resource.qualified, current.key.name) from None
        except NotThere:
            raise not_found(resource.qualified, current.key.name) from None

    def _with_identity(self, resource: ServedResource, namespace: str, new: Object) -> Object:
        given = metadata(new)
        if given.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        marks = {key: value for key, value in given.items() if key not in (*_SERVER_OWNED, *_NEVER_KEPT)}
        if given.get("generateName"):
            marks["generateName"] = given["generateName"]
            marks["name"] = given.get("name") or given["generateName"] + self.identities.suffix()
        if resource.namespaced:
            marks["namespace"] = namespace
        else:
            marks.pop("namespace", None)
        marks["uid"] = self.identities.uid()
        if resource.generation:
            marks["generation"] = 1
        marks["creationTimestamp"] = rfc3339(self.clock.time())
        return {"metadata": marks} | {key: value for key, value in new.items() if key != "metadata"}

    def _check_namespace(self, resource: ServedResource, namespace: str, name: str) -> None:
        if not resource.namespaced:
            return
        found = self.store.get(StoreKey(NAMESPACES.storage, "", namespace))
        if found is None:
            raise not_found(NAMESPACES.qualified, namespace)
        if is_terminating(found.body):
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            cause = StatusCause("NamespaceTerminating", f"namespace {namespace} is being terminated")
            shown = {"reason": cause.reason, "message": cause.message, "field": "metadata.namespace"}
            raise forbidden(resource.qualified, name, why, causes=[shown])

    def _check_versions(self, resource: ServedResource, current: Stored, body: Object) -> None:
        given = metadata(body)
        name = current.key.name
        if given.get("resourceVersion") and given["resourceVersion"] != str(current.revision):
            raise modified(resource.qualified, name)
        if given.get("uid") and given["uid"] != uid_of(current.body):
            why = (
                f"Precondition failed: UID in precondition: {given['uid']}, "
                f"UID in object meta: {uid_of(current.body)}"
            )
            raise conflict(resource.qualified, name, why)
        if name_of(body) not in ("", name):
            raise bad_request(
                f"the name of the object ({name_of(body)}) does not match the name on the URL ({name})"
            )
        if namespace_of(body) not in ("", current.key.namespace):
            raise wrong_namespace()

    def _merged(self, resource: ServedResource, current: Object, new: Object, part: str | None) -> Object:
        """The new object, with all fields restored that this path may not change."""
        old, given = metadata(current), metadata(new)
        marks = {
            key: value
            for key, value in given.items()
            if key not in (*_SERVER_OWNED, *_NEVER_KEPT, "name", "namespace")
        }
        marks |= {key: old[key] for key in ("name", "namespace", *_SERVER_OWNED) if key in old}
        if part is not None:
            kept = {key: value for key, value in current.items() if key not in ("metadata", part)}
            if part == "status":
                marks["ownerReferences"] = old.get("ownerReferences")
            return {"metadata": _compact(marks)} | kept | {part: new.get(part) or {}}
        rest = {key: value for key, value in new.items() if key not in ("metadata", "status")}
        if resource.has_status and "status" in current:
            rest["status"] = current["status"]
        elif not resource.has_status and "status" in new:
            rest["status"] = new["status"]
        if resource.kind == "Namespace":
            rest["spec"] = current["spec"]
        elif "spec" in current:
            rest.setdefault("spec", {})
        return {"metadata": _compact(marks)} | rest


def _compact(marks: Object) -> Object:
    return {key: value for key, value in marks.items() if value not in (None, {}, [], "")}


def wrong_namespace() -> Exception:
    return bad_request(
        "the namespace of the provided object does not match the namespace sent on the request"
    )


def is_finished(body: Object) -> bool:
    """Whether an object is in deletion and its last finalizer is gone."""
    marks = metadata(body)
    return (
        is_terminating(body)
        and not marks.get("finalizers")
        and not marks.get("deletionGracePeriodSeconds")
        and not (body.get("spec") or {}).get("finalizers")
    )
