"""The columns that `kubectl get` shows for each kind, and how their cells are read. Pure."""

from collections.abc import Callable, Mapping
from fractions import Fraction

import msgspec

from colocate.lab.api import pod_columns, workload_columns
from colocate.lab.api.ages import age
from colocate.lab.api.objects import Object, at, condition, labels_of, metadata
from colocate.lab.api.quantities import in_binary, in_decimal, parse

Cells = Callable[[Object, float], list[object]]
_ROLE = "node-role.kubernetes.io/"


class Column(msgspec.Struct, frozen=True):
    """The definition of a column, as sent to clients."""

    name: str
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0
    """0 is always shown, 1 only with `-o wide`."""


class Layout(msgspec.Struct, frozen=True):
    """A kind's columns and its cells, in the same order."""

    columns: tuple[Column, ...]
    cells: Cells


def _wide(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, priority=1) for name in names)


def _count(name: str, description: str) -> Column:
    return Column(name, "integer", description=description)


_NAME = Column("Name", format="name", description="The name of the object.")
_WIDE_NAME = Column("Name", format="name", description="The name of the object.", priority=1)
_AGE = Column("Age", description="How long ago the object was created.")
_CREATED = Column("Created At", "date", description="When the object was created.")


def _name(obj: Object) -> object:
    return metadata(obj).get("name")


def _age(obj: Object, now: float) -> str:
    return age(metadata(obj).get("creationTimestamp"), now)


def _plain(obj: Object, now: float) -> list[object]:
    return [_name(obj), _age(obj, now)]


def _node(node: Object, now: float) -> list[object]:
    ready = condition(node, "Ready")
    word = "Unknown" if ready is None else "Ready" if ready["status"] == "True" else "NotReady"
    if at(node, "spec", "unschedulable"):
        word += ",SchedulingDisabled"
    labels = labels_of(node)
    roles = sorted({key.removeprefix(_ROLE) for key in labels if key.startswith(_ROLE)} - {""})
    if labels.get("kubernetes.io/role"):
        roles.append(labels["kubernetes.io/role"])
    addresses = {one["type"]: one["address"] for one in reversed(at(node, "status", "addresses") or [])}
    info = at(node, "status", "nodeInfo") or {}
    return [
        _name(node),
        word,
        ",".join(roles) or "<none>",
        _age(node, now),
        info.get("kubeletVersion") or "",
        addresses.get("InternalIP", "<none>"),
        addresses.get("ExternalIP", "<none>"),
        info.get("osImage") or "<unknown>",
        info.get("kernelVersion") or "<unknown>",
        info.get("containerRuntimeVersion") or "<unknown>",
    ]


def _namespace(namespace: Object, now: float) -> list[object]:
    return [_name(namespace), at(namespace, "status", "phase"), _age(namespace, now)]


def _config_map(config_map: Object, now: float) -> list[object]:
    entries = len(config_map.get("data") or {}) + len(config_map.get("binaryData") or {})
    return [_name(config_map), entries, _age(config_map, now)]


def _event(event: Object, now: float) -> list[object]:
    involved = event.get("involvedObject") or {}
    first = event.get("firstTimestamp") or event.get("eventTime")
    last = at(event, "series", "lastObservedTime") or event.get("lastTimestamp") or first
    source = event.get("source") or {}
    component = source.get("component") or event.get("reportingComponent") or ""
    host = source.get("host") or event.get("reportingInstance") or ""
    return [
        age(last, now),
        event.get("type") or "",
        event.get("reason") or "",
        f"{str(involved.get('kind') or '').lower()}/{involved.get('name') or ''}",
        involved.get("fieldPath") or "",
        f"{component}, {host}" if component and host else component,
        str(event.get("message") or "").strip(),
        age(first, now),
        at(event, "series", "count") or event.get("count") or 1,
        _name(event),
    ]


def _use(metrics: Object, now: float) -> list[object]:
    usages: list[Object] = (
        [metrics["usage"]] if "usage" in metrics else [one["usage"] for one in metrics["containers"]]
    )
    cpu = sum((parse(one["cpu"]) for one in usages), Fraction())
    memory = sum((parse(one["memory"]) for one in usages), Fraction())
    return [_name(metrics), in_decimal(cpu), in_binary(memory), metrics["window"]]


def _lease(lease: Object, now: float) -> list[object]:
    return [_name(lease), at(lease, "spec", "holderIdentity") or "", _age(lease, now)]


def _budget(budget: Object, now: float) -> list[object]:
    spec = budget.get("spec") or {}
    return [
        _name(budget),
        str(spec["minAvailable"]) if spec.get("minAvailable") is not None else "N/A",
        str(spec["maxUnavailable"]) if spec.get("maxUnavailable") is not None else "N/A",
        at(budget, "status", "disruptionsAllowed") or 0,
        _age(budget, now),
    ]


def _secret(secret: Object, now: float) -> list[object]:
    return [_name(secret), secret.get("type"), len(secret.get("data") or {}), _age(secret, now)]


def _service(service: Object, now: float) -> list[object]:
    spec = service.get("spec") or {}
    ports = [f"{one.get('port')}/{one.get('protocol')}" for one in spec.get("ports") or []]
    selector = ",".join(f"{key}={value}" for key, value in (spec.get("selector") or {}).items())
    return [
        _name(service),
        spec.get("type"),
        spec.get("clusterIP"),
        "<none>",
        ",".join(ports) or "<none>",
        _age(service, now),
        selector or "<none>",
    ]


def _role(role: Object, now: float) -> list[object]:
    return [_name(role), metadata(role).get("creationTimestamp")]


def _binding(binding: Object, now: float) -> list[object]:
    subjects: list[Object] = binding.get("subjects") or []

    def named(kind: str) -> str:
        found = [one for one in subjects if one["kind"] == kind]
        homes = [f"{one['namespace']}/" if one.get("namespace") else "" for one in found]
        return ", ".join(home + one["name"] for home, one in zip(homes, found, strict=True))

    reference = binding["roleRef"]
    return [
        _name(binding),
        f"{reference['kind']}/{reference['name']}",
        _age(binding, now),
        named("User"),
        named("Group"),
        named("ServiceAccount"),
    ]


def _service_account(account: Object, now: float) -> list[object]:
    return [_name(account), len(account.get("secrets") or []), _age(account, now)]


def _priority_class(priority: Object, now: float) -> list[object]:
    return [
        _name(priority),
        priority.get("value") or 0,
        bool(priority.get("globalDefault")),
        _age(priority, now),
        priority.get("preemptionPolicy"),
    ]


_TEMPLATE = _wide("Containers", "Images", "Selector")
_BINDING = Layout((_NAME, Column("Role"), _AGE, *_wide("Users", "Groups", "ServiceAccounts")), _binding)
_ROLES = Layout((_NAME, _CREATED), _role)
_USE = Layout(
    (
        _NAME,
        Column("cpu", format="quantity"),
        Column("memory", format="quantity"),
        Column("Window", format="duration"),
    ),
    _use,
)

PLAIN = Layout((_NAME, _AGE), _plain)

LAYOUTS: Mapping[str, Layout] = {
    "pods": Layout(
        (
            _NAME,
            Column("Ready", description="Containers that are ready, of all."),
            Column("Status", description="The pod's state, in a word."),
            Column("Restarts", description="How often containers were restarted, and when last."),
            _AGE,
            *_wide("IP", "Node", "Nominated Node", "Readiness Gates"),
        ),
        pod_columns.cells,
    ),
    "nodes": Layout(
        (
            _NAME,
            Column("Status", description="Whether the node is ready and takes pods."),
            Column("Roles", description="The roles that its labels give it."),
            _AGE,
            Column("Version", description="The version of its kubelet."),
            *_wide("Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime"),
        ),
        _node,
    ),
    "events": Layout(
        (
            Column("Last Seen", description="How long ago it last happened."),
            Column("Type", description="Normal or Warning."),
            Column("Reason", description="Why, in a word."),
            Column("Object", description="What it happened to."),
            *_wide("Subobject", "Source"),
            Column("Message", description="What happened."),
            *_wide("First Seen", "Count"),
            _WIDE_NAME,
        ),
        _event,
    ),
    "namespaces": Layout((_NAME, Column("Status", description="Active or Terminating."), _AGE), _namespace),
    "configmaps": Layout((_NAME, _count("Data", "How many entries it has."), _AGE), _config_map),
    "serviceaccounts": Layout(
        (_NAME, _count("Secrets", "How many secrets it names."), _AGE), _service_account
    ),
    "leases.coordination.k8s.io": Layout(
        (_NAME, Column("Holder", description="Who holds it."), _AGE), _lease
    ),
    "poddisruptionbudgets.policy": Layout(
        (
            _NAME,
            Column("Min Available", description="How many pods must stay."),
            Column("Max Unavailable", description="How many pods may be missing."),
            _count("Allowed Disruptions", "How many pods may be evicted now."),
            _AGE,
        ),
        _budget,
    ),
    "deployments.apps": Layout(
        (
            _NAME,
            Column("Ready", description="Pods that are ready, of those wanted."),
            _count("Up-to-date", "Pods of the newest template."),
            _count("Available", "Pods that have been ready for long enough."),
            _AGE,
            *_TEMPLATE,
        ),
        workload_columns.deployment,
    ),
    "replicasets.apps": Layout(
        (
            _NAME,
            _count("Desired", "Pods that are wanted."),
            _count("Current", "Pods that exist."),
            _count("Ready", "Pods that are ready."),
            _AGE,
            *_TEMPLATE,
        ),
        workload_columns.replica_set,
    ),
    "daemonsets.apps": Layout(
        (
            _NAME,
            _count("Desired", "Nodes that should run a pod of it."),
            _count("Current", "Nodes that have a pod of it."),
            _count("Ready", "Pods that are ready."),
            _count("Up-to-date", "Pods of the newest template."),
            _count("Available", "Pods that have been ready for long enough."),
            Column("Node Selector", description="The labels that its nodes have."),
            _AGE,
            *_TEMPLATE,
        ),
        workload_columns.daemon_set,
    ),
    "jobs.batch": Layout(
        (
            _NAME,
            Column("Status", description="Running, Complete or Failed."),
            Column("Completions", description="Pods that succeeded, of those wanted."),
            Column("Duration", description="How long it has run."),
            _AGE,
            *_TEMPLATE,
        ),
        workload_columns.job,
    ),
    "services": Layout(
        (
            _NAME,
            Column("Type", description="How it is exposed."),
            Column("Cluster-IP", description="Its address; none here."),
            Column("External-IP", description="Its address outside; none here."),
            Column("Port(s)", description="The ports that it names."),
            _AGE,
            *_wide("Selector"),
        ),
        _service,
    ),
    "secrets": Layout(
        (
            _NAME,
            Column("Type", description="What it holds."),
            _count("Data", "How many entries it has."),
            _AGE,
        ),
        _secret,
    ),
    "roles.rbac.authorization.k8s.io": _ROLES,
    "clusterroles.rbac.authorization.k8s.io": _ROLES,
    "rolebindings.rbac.authorization.k8s.io": _BINDING,
    "clusterrolebindings.rbac.authorization.k8s.io": _BINDING,
    "priorityclasses.scheduling.k8s.io": Layout(
        (
            _NAME,
            _count("Value", "The priority of its pods."),
            Column("Global-Default", "boolean", description="Whether pods without a class get this one."),
            _AGE,
            Column("PreemptionPolicy", description="Whether its pods preempt others."),
        ),
        _priority_class,
    ),
    "nodes.metrics.k8s.io": _USE,
    "pods.metrics.k8s.io": _USE,
}
