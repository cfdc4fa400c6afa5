"""Deletes objects: at once, after a grace period, or when the last finalizer is gone.

A pod that runs on a node is only marked; its kubelet deletes it with a grace period of 0 once it has stopped.
The garbage collector handles what an object owned.
"""

from typing import Any

import msgspec

from colocate.lab.api.changes import Stored
from colocate.lab.api.objects import Object, at, is_terminating, metadata, parse_time, rfc3339, uid_of
from colocate.lab.api.registry import ObjectRegistry, is_finished
from colocate.lab.api.resources import NAMESPACES, PODS, ServedResource
from colocate.lab.api.status import bad_request, conflict, forbidden
from colocate.lab.api.store import NotThere

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
LASTING_NAMESPACES = ("default", "kube-system", "kube-public")


class Preconditions(msgspec.Struct, frozen=True):
    """Preconditions of a deletion."""

    uid: str | None = None
    resourceVersion: str | None = None


class DeleteOptions(msgspec.Struct, frozen=True):
    """The options of a deletion. Field names are those of the API."""

    gracePeriodSeconds: int | None = None
    propagationPolicy: str | None = None
    preconditions: Preconditions | None = None
    orphanDependents: bool | None = None
    dryRun: list[str] | None = None
    kind: str | None = None

    @property
    def finalizer(self) -> str:
        """The finalizer that holds the object until the garbage collector has handled its dependents."""
        policy = self.propagationPolicy or ("Orphan" if self.orphanDependents else "Background")
        return {"Foreground": FOREGROUND, "Orphan": ORPHAN}.get(policy, "")


def read_options(body: Any) -> DeleteOptions:
    """Options from a decoded body; raises the Status of an invalid body."""
    try:
        options = msgspec.convert(body or {}, DeleteOptions)
    except msgspec.ValidationError as error:
        raise bad_request(f"DeleteOptions cannot be read: {error}") from None
    if options.propagationPolicy not in (None, "Foreground", "Background", "Orphan"):
        raise bad_request(f"propagationPolicy {options.propagationPolicy!r} is not known")
    if (options.gracePeriodSeconds or 0) < 0:
        raise bad_request("gracePeriodSeconds must be greater than or equal to 0")
    return options


class DeletionOutcome(msgspec.Struct, frozen=True):
    """The result of a deletion."""

    stored: Stored
    gone: bool


def delete(
    registry: ObjectRegistry,
    resource: ServedResource,
    namespace: str,
    name: str,
    options: DeleteOptions = DeleteOptions(),  # noqa: B008 - frozen
    dry_run: bool = False,
) -> DeletionOutcome:
    """Delete an object, or begin its deletion."""
    current = registry.get(resource, namespace, name)
    _check(resource, current, options)
    grace = _grace(resource, current, options)
    marks = metadata(current.body)
    wanted = options.finalizer
    held = bool(marks.get("finalizers") or wanted or at(current.body, "spec", "finalizers"))
    if dry_run:
        return DeletionOutcome(current, gone=not grace and not held)
    if is_terminating(current.body):
        return _hasten(registry, resource, current, grace, held)
    # A pod is always marked before it is removed, so that a watch shows both steps; other kinds are only removed.
    if not grace and not held and resource is not PODS:
        return DeletionOutcome(registry.store.remove(current.key), gone=True)
    now = registry.clock.time()

    def mark(body: Object) -> None:
        given = body["metadata"]
        given["deletionTimestamp"] = rfc3339(now + grace)
        given["deletionGracePeriodSeconds"] = grace
        if given.get("generation"):
            given["generation"] += 1
        if wanted and wanted not in (given.get("finalizers") or []):
            given["finalizers"] = [*(given.get("finalizers") or []), wanted]
        if resource is NAMESPACES:
            body["status"] = {**(body.get("status") or {}), "phase": "Terminating"}

    stored = registry.force(resource, current, mark)
    return DeletionOutcome(stored, gone=is_finished(stored.body))


def _check(resource: ServedResource, current: Stored, options: DeleteOptions) -> None:
    name = current.key.name
    if resource is NAMESPACES and name in LASTING_NAMESPACES:
        raise forbidden("namespaces", name, "this namespace may not be deleted")
    wanted = options.preconditions or Preconditions()
    found = uid_of(current.body)
    if wanted.uid is not None and wanted.uid != found:
        why = f"Precondition failed: UID in precondition: {wanted.uid}, UID in object meta: {found}"
        raise conflict(resource.qualified, name, why)
    if wanted.resourceVersion is not None and wanted.resourceVersion != str(current.revision):
        why = (
            f"Precondition failed: ResourceVersion in precondition: {wanted.resourceVersion}, "
            f"ResourceVersion in object meta: {current.revision}"
        )
        raise conflict(resource.qualified, name, why)


def _grace(resource: ServedResource, current: Stored, options: DeleteOptions) -> int:
    """The grace period in seconds. Only a pod on a node has processes to stop."""
    if resource is not PODS:
        return 0
    pod = current.body
    if not at(pod, "spec", "nodeName") or at(pod, "status", "phase") in ("Succeeded", "Failed"):
        return 0
    if options.gracePeriodSeconds is not None:
        return options.gracePeriodSeconds
    given = at(pod, "spec", "terminationGracePeriodSeconds")
    return 30 if given is None else int(given)


def _hasten(
    registry: ObjectRegistry, resource: ServedResource, current: Stored, grace: int, held: bool
) -> DeletionOutcome:
    """A second deletion can only make the first one faster."""
    marks = metadata(current.body)
    left = int(marks.get("deletionGracePeriodSeconds") or 0)
    if grace >= left and not (grace == 0 and not held):
        return DeletionOutcome(current, gone=False)
    if grace == 0 and not held:
        try:
            return DeletionOutcome(registry.store.remove(current.key), gone=True)
        except NotThere:
            return DeletionOutcome(current, gone=True)
    started = (parse_time(marks["deletionTimestamp"]) or 0.0) - left

    def shorten(body: Object) -> None:
        body["metadata"]["deletionTimestamp"] = rfc3339(started + grace)
        body["metadata"]["deletionGracePeriodSeconds"] = grace

    stored = registry.force(resource, current, shorten)
    return DeletionOutcome(stored, gone=is_finished(stored.body))
