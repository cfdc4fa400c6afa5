"""The API server's defaults for objects, by kind.

Not implemented: the service account's token volume, and every field that nothing here reads.
"""

import base64
from collections.abc import Callable, Mapping

from colocate.lab.api import resources
from colocate.lab.api.changes import StoreKey
from colocate.lab.api.objects import Object, name_of, uid_of
from colocate.lab.api.pod_defaults import containers, fill_amounts, fill_pod, fill_template, qos_class
from colocate.lab.api.status import forbidden
from colocate.lab.api.store import ObjectStore

_NULLS_KEPT = ("status", "eventTime", "firstTimestamp", "lastTimestamp")


def without_nulls(body: Object) -> Object:
    """A copy without the fields that are null: to the API both mean unset.

    The status and an event's times stay unchanged: those are shown as null.
    """
    return {
        key: value if key in _NULLS_KEPT else _pruned(value)
        for key, value in body.items()
        if value is not None or key in _NULLS_KEPT
    }


def _pruned(value: object) -> object:
    if isinstance(value, dict):
        return {key: _pruned(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_pruned(one) for one in value]
    return value


def on_create(storage: str, body: Object, store: ObjectStore) -> None:
    """Fill in the defaults of a new object, and remove the status, which only a controller may set."""
    if fill := _CREATE.get(storage):
        fill(body, store)
    on_write(storage, body)


def on_write(storage: str, body: Object) -> None:
    """Fill in the defaults of an object at every write."""
    if fill := _WRITE.get(storage):
        fill(body)


def _create_pod(body: Object, store: ObjectStore) -> None:
    spec = body.setdefault("spec", {})
    fill_pod(spec)
    _resolve_priority(body, store)
    body["status"] = {"phase": "Pending", "qosClass": qos_class(spec)}


def _resolve_priority(body: Object, store: ObjectStore) -> None:
    spec = body["spec"]
    wanted = spec.get("priorityClassName")
    classes = resources.PRIORITY_CLASSES.storage
    if wanted:
        found = store.get(StoreKey(classes, "", wanted))
        if found is None:
            raise forbidden("pods", name_of(body), f"no PriorityClass with name {wanted} was found")
        chosen: Object = found.body
    else:
        defaults = [one.body for one in store.items(classes) if one.body.get("globalDefault")]
        chosen = min(defaults, key=lambda one: int(one["value"]), default={})
        if chosen:
            spec["priorityClassName"] = name_of(chosen)
    priority = int(chosen.get("value") or 0)
    if spec.get("priority") not in (None, priority):
        raise forbidden(
            "pods",
            name_of(body),
            f"the integer value of priority ({spec['priority']}) must not be provided in pod spec; "
            f"priority admission controller computed {priority} from the given PriorityClass name",
        )
    spec["priority"] = priority
    spec["preemptionPolicy"] = chosen.get("preemptionPolicy") or "PreemptLowerPriority"


def _create_node(body: Object, _: ObjectStore) -> None:
    body.setdefault("spec", {})
    body.setdefault("status", {})


def _create_namespace(body: Object, _: ObjectStore) -> None:
    labels = body["metadata"].setdefault("labels", {})
    labels["kubernetes.io/metadata.name"] = name_of(body)
    body["spec"] = {"finalizers": ["kubernetes"]}
    body["status"] = {"phase": "Active"}


def _without_status(body: Object, _: ObjectStore) -> None:
    body.setdefault("spec", {})
    body["status"] = {}


def _create_job(body: Object, _: ObjectStore) -> None:
    """Select the Job's pods by a unique label, unless the Job has its own selector."""
    _without_status(body, _)
    spec = body["spec"]
    template = spec.setdefault("template", {})
    if not spec.get("selector"):
        own = {"batch.kubernetes.io/controller-uid": uid_of(body)}
        spec["selector"] = {"matchLabels": own}
        labels = template.setdefault("metadata", {}).setdefault("labels", {})
        labels |= own


def _write_pod(body: Object) -> None:
    """Write amounts in canonical form, so that 1 in place of "1" is no change."""
    for container in containers(body.get("spec") or {}):
        for amounts in (container.get("resources") or {}).values():
            fill_amounts(amounts if isinstance(amounts, dict) else {})


def _write_secret(body: Object) -> None:
    body.setdefault("type", "Opaque")
    written = {
        key: base64.b64encode(str(text).encode()).decode()
        for key, text in (body.pop("stringData", None) or {}).items()
    }
    if written:
        body["data"] = {**(body.get("data") or {}), **written}


def _write_service(body: Object) -> None:
    """Services are stored and shown without an address: nothing would listen on it."""
    spec = body.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("clusterIP", "None")
    spec.setdefault("sessionAffinity", "None")
    for port in spec.get("ports") or []:
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))


def _write_daemon_set(body: Object) -> None:
    spec = body["spec"]
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("updateStrategy", {}).setdefault("type", "RollingUpdate")
    _write_template(spec)


def _write_job(body: Object) -> None:
    spec = body["spec"]
    parallelism, completions = spec.get("parallelism"), spec.get("completions")
    if parallelism is None:
        spec["parallelism"] = 1
        if completions is None:
            spec["completions"] = 1
    spec.setdefault("backoffLimit", 6)
    _write_template(spec)


def _write_node(body: Object) -> None:
    status = body.get("status") or {}
    capacity = status.get("capacity")
    if capacity and not status.get("allocatable"):
        status["allocatable"] = dict(capacity)
    for amounts in (capacity, status.get("allocatable")):
        fill_amounts(amounts or {})


def _write_deployment(body: Object) -> None:
    spec = body["spec"]
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    strategy = spec.setdefault("strategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")
    _write_template(spec)


def _write_replica_set(body: Object) -> None:
    body["spec"].setdefault("replicas", 1)
    _write_template(body["spec"])


def _write_template(spec: Object) -> None:
    template = spec.get("template")
    if template:
        fill_template(template.setdefault("spec", {}))
        if not spec.get("selector"):
            spec.pop("selector", None)


def _write_role_binding(body: Object) -> None:
    if body.get("roleRef"):
        body["roleRef"].setdefault("apiGroup", "rbac.authorization.k8s.io")
    for subject in body.get("subjects") or []:
        if subject["kind"] in ("User", "Group"):
            subject.setdefault("apiGroup", "rbac.authorization.k8s.io")


def _write_priority_class(body: Object) -> None:
    body.setdefault("preemptionPolicy", "PreemptLowerPriority")


_CREATE: Mapping[str, Callable[[Object, ObjectStore], None]] = {
    "pods": _create_pod,
    "nodes": _create_node,
    "namespaces": _create_namespace,
    "daemonsets.apps": _without_status,
    "deployments.apps": _without_status,
    "jobs.batch": _create_job,
    "replicasets.apps": _without_status,
    "poddisruptionbudgets.policy": _without_status,
}

_WRITE: Mapping[str, Callable[[Object], None]] = {
    "nodes": _write_node,
    "pods": _write_pod,
    "secrets": _write_secret,
    "services": _write_service,
    "daemonsets.apps": _write_daemon_set,
    "deployments.apps": _write_deployment,
    "jobs.batch": _write_job,
    "replicasets.apps": _write_replica_set,
    "rolebindings.rbac.authorization.k8s.io": _write_role_binding,
    "clusterrolebindings.rbac.authorization.k8s.io": _write_role_binding,
    "priorityclasses.scheduling.k8s.io": _write_priority_class,
}
