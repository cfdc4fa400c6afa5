"""Keeps the number of pods that a ReplicaSet wants: creates missing pods and deletes surplus ones.

`plan` decides, from the set and its pods; `carry_out` acts. Pods that match a set but have no owner are not
adopted.
"""

import msgspec

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
    is_ready,
    is_terminating,
    labels_of,
    metadata,
    name_of,
    namespace_of,
    parse_time,
    uid_of,
)
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.resources import PODS, REPLICA_SETS, ServedResource
from colocate.lab.api.status import StatusError
from colocate.lab.api.store import OWNER

COMPONENT = "replicaset-controller"
_RECENT_SECONDS = 600.0
_FREE_FAILURES = 3
_LONGEST_WAIT = 60.0


class ReplicaPlan(msgspec.Struct, frozen=True):
    """The actions for one ReplicaSet."""

    create: int
    delete: list[str]
    status: Object
    again_in: float | None = None
    """Seconds until the next look, even if nothing changes."""


def plan(replica_set: Object, pods: list[Object], now: float) -> ReplicaPlan:
    """Decide the actions for a set with these pods."""
    active = [pod for pod in pods if is_active(pod)]
    patience = float(at(replica_set, "spec", "minReadySeconds") or 0)
    ages = [_ready_for(pod, now) for pod in active]
    available = sum(1 for age in ages if age is not None and age >= patience)
    waiting = [patience - age for age in ages if age is not None and age < patience]
    missing = int(at(replica_set, "spec", "replicas") or 0) - len(active)
    pause = _pause(pods, now) if missing > 0 else 0.0
    if pause:
        waiting.append(pause)
    surplus = sorted(active, key=_worth)[: max(0, -missing)]
    return ReplicaPlan(
        create=0 if pause else max(0, missing),
        delete=[name_of(pod) for pod in surplus],
        status=_status(replica_set, active, available),
        again_in=min(waiting, default=None),
    )


def is_active(pod: Object) -> bool:
    return not is_terminating(pod) and at(pod, "status", "phase") not in ("Succeeded", "Failed")


def _ready_for(pod: Object, now: float) -> float | None:
    """Seconds that a pod has been ready; None where it is not."""
    if not is_ready(pod):
        return None
    since = parse_time((condition(pod, "Ready") or {}).get("lastTransitionTime"))
    return now - since if since is not None else float("inf")


def _pause(pods: list[Object], now: float) -> float:
    """Seconds to wait before the next pod, if pods fail one after the other."""
    failed = [pod for pod in pods if at(pod, "status", "phase") == "Failed"]
    births = [parse_time(metadata(pod).get("creationTimestamp")) or 0.0 for pod in failed]
    recent = [birth for birth in births if now - birth < _RECENT_SECONDS]
    if len(recent) <= _FREE_FAILURES:
        return 0.0
    wait = min(_LONGEST_WAIT, 2.0 ** (len(recent) - _FREE_FAILURES))
    return max(0.0, max(recent) + wait - now)


def _worth(pod: Object) -> tuple[object, ...]:
    """The sort key for deletion: the least useful pods come first."""
    phases = {"Pending": 0, "Unknown": 1, "Running": 2}
    cost = annotations_of(pod).get("controller.kubernetes.io/pod-deletion-cost", "0")
    born = parse_time(metadata(pod).get("creationTimestamp")) or 0.0
    return (
        bool(at(pod, "spec", "nodeName")),
        phases.get(str(at(pod, "status", "phase")), 1),
        is_ready(pod),
        int(cost) if cost.lstrip("-").isdigit() else 0,
        -born,
        name_of(pod),
    )


def _status(replica_set: Object, active: list[Object], available: int) -> Object:
    labels = labels_of(at(replica_set, "spec", "template") or {})
    labelled = sum(1 for pod in active if labels.items() <= labels_of(pod).items())
    counts = {
        "fullyLabeledReplicas": labelled,
        "readyReplicas": sum(map(is_ready, active)),
        "availableReplicas": available,
        "observedGeneration": metadata(replica_set).get("generation"),
    }
    return {"replicas": len(active)} | {key: value for key, value in counts.items() if value}


def pods_of(registry: ObjectRegistry, owner: Object) -> list[Object]:
    found = registry.store.lookup(PODS.storage, OWNER, uid_of(owner))
    return [stored.body for stored in found if (controller_of(stored.body) or {}).get("uid") == uid_of(owner)]


def carry_out(registry: ObjectRegistry, stored: Stored) -> float | None:
    """Reconcile a ReplicaSet; returns the seconds until the next look, or None."""
    replica_set = stored.body
    if is_terminating(replica_set):
        return None
    decided = plan(replica_set, pods_of(registry, replica_set), registry.clock.time())
    namespace, name = namespace_of(replica_set), name_of(replica_set)
    for _ in range(decided.create):
        try:
            pod = registry.create(PODS, namespace, templated(REPLICA_SETS, replica_set))
        except StatusError as error:
            record(registry, REPLICA_SETS, replica_set, COMPONENT, "FailedCreate", f"Error creating: {error}")
            return _LONGEST_WAIT
        message = f"Created pod: {pod.key.name}"
        record(registry, REPLICA_SETS, replica_set, COMPONENT, "SuccessfulCreate", message)
    for pod_name in decided.delete:
        delete(registry, PODS, namespace, pod_name)
        message = f"Deleted pod: {pod_name}"
        record(registry, REPLICA_SETS, replica_set, COMPONENT, "SuccessfulDelete", message)
    if not decided.create and not decided.delete:
        set_status(registry, stored, decided.status)
    else:
        fresh = plan(replica_set, pods_of(registry, replica_set), registry.clock.time())
        set_status(registry, registry.get(REPLICA_SETS, namespace, name), fresh.status)
    return decided.again_in


def set_status(registry: ObjectRegistry, stored: Stored, status: Object) -> None:
    if stored.body.get("status") != status:
        registry.force(REPLICA_SETS, stored, lambda body: body.update(status=status))


def templated(resource: ServedResource, owner: Object) -> Object:
    """A pod from the template of its owner."""
    template = clone(owner["spec"]["template"])
    given = template.get("metadata") or {}
    return {
        "metadata": {
            "generateName": f"{name_of(owner)}-",
            "labels": given.get("labels") or {},
            "annotations": given.get("annotations") or {},
            "finalizers": given.get("finalizers") or [],
            "ownerReferences": [owner_reference(resource.kind, owner, resource.api_version)],
        },
        "spec": template["spec"],
    }


def owner_reference(kind: str, owner: Object, api_version: str = "apps/v1") -> Object:
    """An owner reference to a controller."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": name_of(owner),
        "uid": uid_of(owner),
        "controller": True,
        "blockOwnerDeletion": True,
    }
