"""Disruption budgets: how many pods may be evicted, and whether a given pod may. Changes nothing."""

import msgspec

from colocate.lab.api import selectors
from colocate.lab.api.changes import Stored, StoreKey
from colocate.lab.api.objects import Object, at, controller_of, is_ready, is_terminating, labels_of, uid_of
from colocate.lab.api.pod_defaults import share_of
from colocate.lab.api.resources import DEPLOYMENTS, DISRUPTION_BUDGETS, PODS, REPLICA_SETS
from colocate.lab.api.status import StatusCause, internal, too_many_requests
from colocate.lab.api.store import ObjectStore

_REFUSED = "Cannot evict pod as it would violate the pod's disruption budget."
_SEVERAL = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."


class Count(msgspec.Struct, frozen=True):
    """The pods of a budget. Field names are those of its status."""

    expectedPods: int
    currentHealthy: int
    desiredHealthy: int

    @property
    def disruptionsAllowed(self) -> int:
        return max(0, self.currentHealthy - self.desiredHealthy) if self.expectedPods else 0


def count(store: ObjectStore, namespace: str, budget: Object) -> Count:
    """The current counts of a budget."""
    selector = selectors.from_object(at(budget, "spec", "selector"))
    pods = [
        stored.body
        for stored in store.items(PODS.storage, namespace)
        if selector.matches(labels_of(stored.body)) and not _is_over(stored.body)
    ]
    healthy = sum(1 for pod in pods if is_ready(pod) and not is_terminating(pod))
    expected = _expected(store, namespace, pods)
    spec = budget.get("spec") or {}
    if spec.get("maxUnavailable") is not None:
        desired = max(0, expected - share_of(spec["maxUnavailable"], expected, round_up=True))
    else:
        least = spec.get("minAvailable")
        desired = 1 if least is None else share_of(least, expected, round_up=True)
        if isinstance(least, int):
            expected = len(pods)
    return Count(expected, healthy, desired)


def budgets_of(store: ObjectStore, pod: Object, namespace: str) -> list[Stored]:
    """The budgets that select a pod."""
    labels = labels_of(pod)
    return [
        stored
        for stored in store.items(DISRUPTION_BUDGETS.storage, namespace)
        if selectors.from_object(at(stored.body, "spec", "selector")).matches(labels)
    ]


def check_eviction(store: ObjectStore, pod: Object, namespace: str) -> None:
    """Raise the Status of an eviction that a budget forbids."""
    if _is_over(pod) or at(pod, "status", "phase") == "Pending" or is_terminating(pod):
        return
    budgets = budgets_of(store, pod, namespace)
    if len(budgets) > 1:
        raise internal(_SEVERAL)
    for stored in budgets:
        found = count(store, namespace, stored.body)
        if not is_ready(pod) and _lets_unready_go(stored.body, found):
            continue
        if found.disruptionsAllowed < 1:
            words = (
                f"The disruption budget {stored.key.name} needs {found.desiredHealthy} healthy pods "
                f"and has {found.currentHealthy} currently"
            )
            raise too_many_requests(_REFUSED, [StatusCause("DisruptionBudget", words)])


def _lets_unready_go(budget: Object, found: Count) -> bool:
    """Whether a pod that is not ready may be evicted: while the budget is met, or always if the budget says so."""
    if at(budget, "spec", "unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    return found.currentHealthy >= found.desiredHealthy > 0


def _is_over(pod: Object) -> bool:
    return at(pod, "status", "phase") in ("Succeeded", "Failed")


def _expected(store: ObjectStore, namespace: str, pods: list[Object]) -> int:
    """How many pods there should be: the replicas of their controllers, and each pod without a controller."""
    wanted: dict[str, int] = {}
    for pod in pods:
        uid, replicas = _top_controller(store, namespace, pod)
        wanted[uid] = replicas
    return sum(wanted.values())


def _top_controller(store: ObjectStore, namespace: str, pod: Object) -> tuple[str, int]:
    uid, replicas, owned = uid_of(pod), 1, pod
    for resource in (REPLICA_SETS, DEPLOYMENTS):
        owner = controller_of(owned)
        found = owner and store.get(StoreKey(resource.storage, namespace, owner["name"]))
        if not found or owner is None or uid_of(found.body) != owner["uid"]:
            break
        owned = found.body
        uid, replicas = owner["uid"], int(at(owned, "spec", "replicas") or 0)
    return uid, replicas
