"""Binds pods to nodes and evicts them, through their subresources."""

from collections.abc import Mapping
from typing import Any

from colocate.lab.api import disruption, faults
from colocate.lab.api.bodies import check_kind
from colocate.lab.api.deletion import delete, read_options
from colocate.lab.api.objects import Object, at, condition, is_terminating, metadata, rfc3339, uid_of
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.resources import PODS
from colocate.lab.api.status import StatusError, bad_request, conflict, invalid

_EVICTED = {"reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}


def bind(registry: ObjectRegistry, namespace: str, name: str, body: Any, dry_run: bool) -> None:
    """Bind a pod to a node; Conflict where it already has one."""
    check_kind("Binding", "v1", body)
    node = at(body, "target", "name")
    if not isinstance(node, str) or not node:
        raise invalid("Binding", "", name, [faults.required("target.name")])
    if at(body, "target", "kind") not in (None, "", "Node"):
        kind = faults.unsupported("target.kind", body["target"]["kind"], ["Node"])
        raise invalid("Binding", "", name, [kind])
    current = registry.get(PODS, namespace, name)
    pod = current.body
    if (uid := metadata(body).get("uid")) and uid != uid_of(pod):
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {uid_of(pod)}"
        raise _refusal(name, why)
    if is_terminating(pod):
        raise _refusal(name, f"pod {name} is being deleted, cannot be assigned to a host")
    if bound := at(pod, "spec", "nodeName"):
        raise _refusal(name, f'pod {name} is already assigned to node "{bound}"')
    if at(pod, "spec", "schedulingGates"):
        raise _refusal(name, f"pod {name} has non-empty .spec.schedulingGates")
    if dry_run:
        return
    now = rfc3339(registry.clock.time())

    def assign(changed: Object) -> None:
        changed["spec"]["nodeName"] = node
        if given := metadata(body).get("annotations"):
            marks = changed["metadata"]
            marks["annotations"] = (marks.get("annotations") or {}) | dict(given)
        set_condition(changed, "PodScheduled", "True", now)

    registry.force(PODS, current, assign)


def set_condition(
    pod: Object, type: str, status: str, now: str, why: Mapping[str, str] | None = None
) -> None:
    """Set a condition of a pod's status, in place."""
    new: Object = {"type": type}
    if generation := metadata(pod).get("generation"):
        new["observedGeneration"] = generation
    new |= {"status": status, "lastProbeTime": None, "lastTransitionTime": now, **(why or {})}
    held = pod["status"].setdefault("conditions", [])
    if (old := condition(pod, type)) is not None:
        held[held.index(old)] = new
    else:
        held.append(new)


def _refusal(name: str, why: str) -> StatusError:
    return conflict("pods/binding", name, why)


def evict(registry: ObjectRegistry, namespace: str, name: str, body: Any, dry_run: bool) -> None:
    """Delete a pod if its disruption budget allows it, with a condition that gives the reason."""
    # Old clients still send policy/v1beta1, which was equal.
    version = "policy/v1beta1" if at(body, "apiVersion") == "policy/v1beta1" else "policy/v1"
    check_kind("Eviction", version, body)
    if metadata(body).get("name") not in (None, "", name):
        raise bad_request("name in URL does not match name in Eviction object")
    options = read_options(body.get("deleteOptions"))
    pod = registry.get(PODS, namespace, name).body
    disruption.check_eviction(registry.store, pod, namespace)
    dry_run = dry_run or options.dryRun == ["All"]
    with registry.store.transaction():
        delete(registry, PODS, namespace, name, options, dry_run)
        ending = registry.find(PODS, namespace, name)
        if dry_run or ending is None:
            return
        now = rfc3339(registry.clock.time())
        registry.force(
            PODS, ending, lambda pod: set_condition(pod, "DisruptionTarget", "True", now, _EVICTED)
        )
