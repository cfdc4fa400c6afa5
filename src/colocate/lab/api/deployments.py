"""Keeps a Deployment's ReplicaSets: one for the current template, and older ones that shrink to 0.

`rollout` decides the sizes; this module carries them out and writes the Deployment's status.
"""

from colocate.lab.api import rollout
from colocate.lab.api.changes import Stored
from colocate.lab.api.deletion import delete
from colocate.lab.api.events import record
from colocate.lab.api.objects import (
    Object,
    annotations_of,
    at,
    clone,
    condition,
    controller_of,
    is_terminating,
    labels_of,
    metadata,
    name_of,
    namespace_of,
    rfc3339,
    uid_of,
)
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.replica_sets import owner_reference, pods_of
from colocate.lab.api.resources import DEPLOYMENTS, REPLICA_SETS
from colocate.lab.api.store import OWNER

COMPONENT = "deployment-controller"
_NOT_COPIED = (rollout.REVISION, "kubectl.kubernetes.io/last-applied-configuration")


def carry_out(registry: ObjectRegistry, stored: Stored) -> None:
    """Advance a Deployment by one step; the changes that it makes trigger the next step."""
    deployment = stored.body
    if is_terminating(deployment):
        return
    sets = _sets_of(registry, deployment)
    new = next((one for one in reversed(sets) if rollout.same_template(deployment, one)), None)
    if at(deployment, "spec", "paused"):
        _scale_paused(registry, deployment, sets)
    else:
        new = _promote(registry, deployment, sets, new) if new else _create(registry, deployment, sets)
        old = [one for one in sets if uid_of(one) != uid_of(new)]
        _resize(registry, deployment, new, old)
        _forget_oldest(registry, deployment, old)
    _tell(registry, registry.get(DEPLOYMENTS, namespace_of(deployment), name_of(deployment)), new)


def _sets_of(registry: ObjectRegistry, deployment: Object) -> list[Object]:
    """The ReplicaSets of a Deployment, by revision."""
    uid = uid_of(deployment)
    found = registry.store.lookup(REPLICA_SETS.storage, OWNER, uid)
    owned = [one.body for one in found if (controller_of(one.body) or {}).get("uid") == uid]
    return sorted(owned, key=lambda one: (rollout.revision_of(one), name_of(one)))


def _create(registry: ObjectRegistry, deployment: Object, sets: list[Object]) -> Object:
    namespace = namespace_of(deployment)
    collisions = int(at(deployment, "status", "collisionCount") or 0)
    template = clone(deployment["spec"]["template"])
    hash = rollout.template_hash(template, collisions)
    while registry.find(REPLICA_SETS, namespace, f"{name_of(deployment)}-{hash}"):
        collisions += 1
        hash = rollout.template_hash(template, collisions)
    label = {rollout.HASH: hash}
    template["metadata"] = metadata(template) | {"labels": labels_of(template) | label}
    selector = clone(deployment["spec"]["selector"])
    selector["matchLabels"] = (selector.get("matchLabels") or {}) | label
    revision = max(map(rollout.revision_of, sets), default=0) + 1
    limits = rollout.bounds(deployment)
    size = rollout.resize(limits, rollout.Sizes("", 0), _sizes(registry, sets)).get("", 0)
    body: Object = {
        "metadata": {
            "name": f"{name_of(deployment)}-{hash}",
            "labels": template["metadata"]["labels"],
            "annotations": _annotations(deployment, revision),
            "ownerReferences": [owner_reference(DEPLOYMENTS.kind, deployment)],
        },
        "spec": {"replicas": size, "selector": selector, "template": template},
    }
    if patience := at(deployment, "spec", "minReadySeconds"):
        body["spec"]["minReadySeconds"] = patience
    created = registry.create(REPLICA_SETS, namespace, body).body
    if size:
        _say_scaled(registry, deployment, created, 0, size)
    _set_revision(registry, deployment, revision)
    return created


def _annotations(deployment: Object, revision: int) -> dict[str, str]:
    copied = {key: value for key, value in annotations_of(deployment).items() if key not in _NOT_COPIED}
    return copied | {rollout.REVISION: str(revision)}


def _promote(registry: ObjectRegistry, deployment: Object, sets: list[Object], new: Object) -> Object:
    """Give a set the newest revision if the Deployment returned to its older template."""
    highest = max((rollout.revision_of(one) for one in sets if uid_of(one) != uid_of(new)), default=0)
    revision = rollout.revision_of(new)
    if revision <= highest:
        revision = highest + 1

        def mark(body: Object) -> None:
            marks = body["metadata"]
            marks["annotations"] = (marks.get("annotations") or {}) | {rollout.REVISION: str(revision)}

        new = registry.modify(REPLICA_SETS, namespace_of(new), name_of(new), mark).body
    _set_revision(registry, deployment, revision)
    return new


def _set_revision(registry: ObjectRegistry, deployment: Object, revision: int) -> None:
    if rollout.revision_of(deployment) == revision:
        return

    def mark(body: Object) -> None:
        marks = body["metadata"]
        marks["annotations"] = (marks.get("annotations") or {}) | {rollout.REVISION: str(revision)}

    registry.modify(DEPLOYMENTS, namespace_of(deployment), name_of(deployment), mark)


def _resize(registry: ObjectRegistry, deployment: Object, new: Object, old: list[Object]) -> None:
    limits = rollout.bounds(deployment)
    (newest,) = _sizes(registry, [new])
    sizes = rollout.resize(limits, newest, _sizes(registry, old))
    by_name = {name_of(one): one for one in [new, *old]}
    for name, size in sizes.items():
        _scale(registry, deployment, by_name[name], size)


def _sizes(registry: ObjectRegistry, sets: list[Object]) -> list[rollout.Sizes]:
    return [rollout.sizes_of(one, pods_of(registry, one)) for one in sets]


def _scale_paused(registry: ObjectRegistry, deployment: Object, sets: list[Object]) -> None:
    """Scale a paused Deployment: it does not roll out, but its newest set with pods follows its size."""
    active = [one for one in sets if at(one, "spec", "replicas")] or sets[-1:]
    if not active:
        return
    others = sum(int(at(one, "spec", "replicas") or 0) for one in active[:-1])
    size = max(0, int(at(deployment, "spec", "replicas") or 0) - others)
    if size != at(active[-1], "spec", "replicas"):
        _scale(registry, deployment, active[-1], size)


def _scale(registry: ObjectRegistry, deployment: Object, replica_set: Object, size: int) -> None:
    before = int(at(replica_set, "spec", "replicas") or 0)

    def change(body: Object) -> None:
        body["spec"]["replicas"] = size

    registry.modify(REPLICA_SETS, namespace_of(replica_set), name_of(replica_set), change)
    _say_scaled(registry, deployment, replica_set, before, size)


def _say_scaled(
    registry: ObjectRegistry, deployment: Object, replica_set: Object, before: int, size: int
) -> None:
    way = "up" if size > before else "down"
    message = f"Scaled {way} replica set {name_of(replica_set)} from {before} to {size}"
    record(registry, DEPLOYMENTS, deployment, COMPONENT, "ScalingReplicaSet", message)


def _forget_oldest(registry: ObjectRegistry, deployment: Object, old: list[Object]) -> None:
    """Delete empty sets beyond the revision history limit."""
    limit = int(at(deployment, "spec", "revisionHistoryLimit") or 0)
    empty = [one for one in old if not at(one, "spec", "replicas") and not at(one, "status", "replicas")]
    for one in empty[: max(0, len(empty) - limit)]:
        delete(registry, REPLICA_SETS, namespace_of(one), name_of(one))


def _tell(registry: ObjectRegistry, stored: Stored, new: Object | None) -> None:
    """Write the status if it has changed."""
    deployment = stored.body
    sets = _sets_of(registry, deployment)
    updated = next((one for one in sets if new and uid_of(one) == uid_of(new)), None)

    def total(field: str) -> int:
        return sum(int(at(one, "status", field) or 0) for one in sets)

    wanted = int(at(deployment, "spec", "replicas") or 0)
    available = total("availableReplicas")
    counts = {
        "observedGeneration": metadata(deployment).get("generation"),
        "replicas": total("replicas"),
        "updatedReplicas": int(at(updated, "status", "replicas") or 0),
        "readyReplicas": total("readyReplicas"),
        "availableReplicas": available,
        "unavailableReplicas": max(0, max(wanted, total("replicas")) - available),
    }
    status: Object = {key: value for key, value in counts.items() if value}
    now = rfc3339(registry.clock.time())
    status["conditions"] = _conditions(deployment, counts, updated, now)
    if deployment.get("status") != status:
        registry.force(DEPLOYMENTS, stored, lambda body: body.update(status=status))


def _conditions(deployment: Object, counts: Object, updated: Object | None, now: str) -> list[Object]:
    limits = rollout.bounds(deployment)
    enough = counts["availableReplicas"] >= limits.replicas - limits.unavailable
    words = (
        "Deployment has minimum availability." if enough else "Deployment does not have minimum availability."
    )
    reason = "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable"
    available = _condition(deployment, "Available", enough, reason, words, now)
    name = name_of(updated) if updated else ""
    complete = (
        counts["updatedReplicas"] == counts["replicas"] == counts["availableReplicas"] == limits.replicas
    )
    if complete:
        reason, words = "NewReplicaSetAvailable", f'ReplicaSet "{name}" has successfully progressed.'
    else:
        reason, words = "ReplicaSetUpdated", f'ReplicaSet "{name}" is progressing.'
    return [available, _condition(deployment, "Progressing", True, reason, words, now)]


def _condition(deployment: Object, type: str, holds: bool, reason: str, message: str, now: str) -> Object:
    status = "True" if holds else "False"
    new = {"type": type, "status": status, "reason": reason, "message": message}
    old = condition(deployment, type) or {}
    if new.items() <= old.items():
        return old
    turned = now if old.get("status") != status else old["lastTransitionTime"]
    return new | {"lastUpdateTime": now, "lastTransitionTime": turned}
