"""Keeps one pod of a DaemonSet on every matching node.

`plan` decides, from the set, its pods and the nodes; `carry_out` acts. Pods name their node, so no scheduler is
needed. A changed template replaces pods one node at a time, unless the strategy is OnDelete.
"""

import hashlib

import msgspec

from colocate.lab.api.changes import Stored
from colocate.lab.api.deletion import delete
from colocate.lab.api.events import record
from colocate.lab.api.objects import (
    Object,
    at,
    encode,
    is_ready,
    is_terminating,
    labels_of,
    metadata,
    name_of,
    namespace_of,
)
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.replica_sets import is_active, pods_of, templated
from colocate.lab.api.resources import DAEMON_SETS, NODES, PODS
from colocate.lab.api.status import StatusError
from colocate.lab.scheduler.facts import SchedulableNode, read_node, read_pod
from colocate.lab.scheduler.filters import selects, untolerated

COMPONENT = "daemonset-controller"
REVISION = "controller-revision-hash"
_RETRY = 60.0
_TOLERATED = ("not-ready", "unreachable", "disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")
"""Taints that every DaemonSet's pod tolerates, as on a real cluster: agents must run on troubled nodes, too."""


class DaemonPlan(msgspec.Struct, frozen=True):
    """The actions for one DaemonSet."""

    create: list[str]
    """Nodes that lack a pod."""
    delete: list[str]
    """Pods that are surplus, on the wrong node, ended, or of an old template."""
    status: Object


def plan(daemon_set: Object, pods: list[Object], nodes: list[SchedulableNode]) -> DaemonPlan:
    """Decide the actions for a set with these pods on these nodes."""
    wanted = {node.name for node in nodes if _is_meant(daemon_set, node)}
    revision = revision_of(daemon_set)
    by_node: dict[str, list[Object]] = {}
    for pod in pods:
        by_node.setdefault(str(at(pod, "spec", "nodeName") or ""), []).append(pod)
    good: dict[str, Object] = {}
    gone: list[str] = []
    for node, there in by_node.items():
        active = sorted((pod for pod in there if is_active(pod)), key=_age)
        if node in wanted and active:
            good[node] = active[0]
        kept = [good[node]] if node in good else []
        gone += [name_of(pod) for pod in there if pod not in kept and not is_terminating(pod)]
    busy = {node for node, there in by_node.items() if any(map(is_terminating, there))}
    fresh = {node for node, pod in good.items() if labels_of(pod).get(REVISION) == revision}
    ready = {node for node, pod in good.items() if is_ready(pod)}
    missing = sorted(wanted - set(good) - busy)
    rolling = at(daemon_set, "spec", "updateStrategy", "type") != "OnDelete"
    stale = sorted(set(good) - fresh)
    # One at a time, and only while every other node has its pod.
    if rolling and stale and not missing and not busy and ready >= set(good) - {stale[0]}:
        gone.append(name_of(good[stale[0]]))
    status = {
        "currentNumberScheduled": len(good),
        "desiredNumberScheduled": len(wanted),
        "numberMisscheduled": sum(1 for node in by_node if node not in wanted),
        "numberReady": len(ready),
        "numberAvailable": len(ready),
        "numberUnavailable": len(wanted) - len(ready),
        "updatedNumberScheduled": len(fresh),
        "observedGeneration": metadata(daemon_set).get("generation"),
    }
    return DaemonPlan(missing, gone, status)


def _age(pod: Object) -> str:
    return str(metadata(pod).get("creationTimestamp") or "")


def _is_meant(daemon_set: Object, node: SchedulableNode) -> bool:
    made = _pod(daemon_set, node.name)
    made["metadata"] |= {"name": "any", "namespace": "any", "uid": ""}
    pod = read_pod(made)
    return selects(pod, node) and untolerated(pod.tolerations, node.taints) is None


def revision_of(daemon_set: Object) -> str:
    """A hash of the template."""
    return hashlib.sha256(encode(daemon_set["spec"]["template"])).hexdigest()[:10]


def carry_out(registry: ObjectRegistry, stored: Stored) -> float | None:
    """Reconcile a DaemonSet; returns the seconds until the next look, or None."""
    daemon_set = stored.body
    if is_terminating(daemon_set):
        return None
    nodes = [read_node(node.body) for node in registry.store.items(NODES.storage)]
    decided = plan(daemon_set, pods_of(registry, daemon_set), nodes)
    namespace = namespace_of(daemon_set)
    for node in decided.create:
        try:
            pod = registry.create(PODS, namespace, _pod(daemon_set, node))
        except StatusError as error:
            record(registry, DAEMON_SETS, daemon_set, COMPONENT, "FailedCreate", f"Error creating: {error}")
            return _RETRY
        message = f"Created pod: {pod.key.name}"
        record(registry, DAEMON_SETS, daemon_set, COMPONENT, "SuccessfulCreate", message)
    for name in decided.delete:
        delete(registry, PODS, namespace, name)
        record(registry, DAEMON_SETS, daemon_set, COMPONENT, "SuccessfulDelete", f"Deleted pod: {name}")
    now = registry.get(DAEMON_SETS, namespace, name_of(daemon_set))
    status = plan(daemon_set, pods_of(registry, daemon_set), nodes).status
    if now.body.get("status") != status:
        registry.force(DAEMON_SETS, now, lambda body: body.update(status=status))
    return None


def _pod(daemon_set: Object, node: str) -> Object:
    pod = templated(DAEMON_SETS, daemon_set)
    pod["metadata"]["labels"] = {**pod["metadata"]["labels"], REVISION: revision_of(daemon_set)}
    spec = pod["spec"]
    spec["nodeName"] = node
    spec["tolerations"] = [
        *(spec.get("tolerations") or []),
        *({"key": f"node.kubernetes.io/{word}", "operator": "Exists"} for word in _TOLERATED),
    ]
    return pod
