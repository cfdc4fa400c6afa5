"""The types of the fields that the server itself reads, by kind.

A body is checked against its shape before any rule reads it, so that rules can rely on the types. Fields that are
not listed stay unchanged. A pure check: nothing is changed.
"""

from typing import Any

import msgspec

from colocate.lab.api.objects import Object
from colocate.lab.api.resources import ServedResource
from colocate.lab.api.status import bad_request

Text = str | None
Strings = dict[str, str] | None
Amounts = dict[str, str | int | float] | None


class _Owner(msgspec.Struct):
    name: str
    uid: str
    kind: str
    apiVersion: str
    controller: bool | None = None


class _Metadata(msgspec.Struct):
    name: Text = None
    generateName: Text = None
    namespace: Text = None
    uid: Text = None
    resourceVersion: Text = None
    labels: Strings = None
    annotations: Strings = None
    finalizers: list[str] | None = None
    ownerReferences: list[_Owner] | None = None


class _Any(msgspec.Struct):
    metadata: _Metadata | None = None
    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None


class _Resources(msgspec.Struct):
    limits: Amounts = None
    requests: Amounts = None


class _Container(msgspec.Struct):
    name: Text = None
    image: Text = None
    imagePullPolicy: Text = None
    resources: _Resources | None = None
    ports: list[dict[str, Any]] | None = None
    env: list[dict[str, Any]] | None = None
    command: list[str] | None = None
    args: list[str] | None = None


class _PodSpec(msgspec.Struct):
    containers: list[_Container] | None = None
    initContainers: list[_Container] | None = None
    nodeName: Text = None
    nodeSelector: Strings = None
    schedulerName: Text = None
    priorityClassName: Text = None
    priority: int | None = None
    serviceAccountName: Text = None
    restartPolicy: Text = None
    hostNetwork: bool | None = None
    terminationGracePeriodSeconds: int | None = None
    activeDeadlineSeconds: int | None = None
    tolerations: list[dict[str, Any]] | None = None
    schedulingGates: list[dict[str, Any]] | None = None
    volumes: list[dict[str, Any]] | None = None


class _Condition(msgspec.Struct):
    type: str
    status: str


class _ContainerState(msgspec.Struct):
    waiting: dict[str, Any] | None = None
    running: dict[str, Any] | None = None
    terminated: dict[str, Any] | None = None


class _ContainerStatus(msgspec.Struct):
    name: str
    ready: bool | None = None
    restartCount: int | None = None
    state: _ContainerState | None = None
    lastState: _ContainerState | None = None


class _PodStatus(msgspec.Struct):
    phase: Text = None
    reason: Text = None
    conditions: list[_Condition] | None = None
    containerStatuses: list[_ContainerStatus] | None = None
    initContainerStatuses: list[_ContainerStatus] | None = None


class _Pod(msgspec.Struct):
    metadata: _Metadata | None = None
    spec: _PodSpec | None = None
    status: _PodStatus | None = None


class _Taint(msgspec.Struct):
    key: str
    effect: str
    value: Text = None


class _NodeSpec(msgspec.Struct):
    unschedulable: bool | None = None
    taints: list[_Taint] | None = None


class _Address(msgspec.Struct):
    type: str
    address: str


class _NodeStatus(msgspec.Struct):
    capacity: Amounts = None
    allocatable: Amounts = None
    conditions: list[_Condition] | None = None
    addresses: list[_Address] | None = None
    nodeInfo: dict[str, Any] | None = None


class _Node(msgspec.Struct):
    metadata: _Metadata | None = None
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None


class _Template(msgspec.Struct):
    metadata: _Metadata | None = None
    spec: _PodSpec | None = None


class _Expression(msgspec.Struct):
    key: str
    operator: str
    values: list[str] | None = None


class _Selector(msgspec.Struct):
    matchLabels: Strings = None
    matchExpressions: list[_Expression] | None = None


class _RollingUpdate(msgspec.Struct):
    maxSurge: int | str | None = None
    maxUnavailable: int | str | None = None


class _Strategy(msgspec.Struct):
    type: Text = None
    rollingUpdate: _RollingUpdate | None = None


class _WorkloadSpec(msgspec.Struct):
    replicas: int | None = None
    selector: _Selector | None = None
    template: _Template | None = None
    strategy: _Strategy | None = None
    minReadySeconds: int | None = None
    revisionHistoryLimit: int | None = None
    progressDeadlineSeconds: int | None = None
    paused: bool | None = None


class _WorkloadStatus(msgspec.Struct):
    conditions: list[_Condition] | None = None
    replicas: int | None = None


class _Workload(msgspec.Struct):
    metadata: _Metadata | None = None
    spec: _WorkloadSpec | None = None
    status: _WorkloadStatus | None = None


class _BudgetSpec(msgspec.Struct):
    minAvailable: int | str | None = None
    maxUnavailable: int | str | None = None
    selector: _Selector | None = None
    unhealthyPodEvictionPolicy: Text = None


class _Budget(msgspec.Struct):
    metadata: _Metadata | None = None
    spec: _BudgetSpec | None = None
    status: dict[str, Any] | None = None


class _NamespaceSpec(msgspec.Struct):
    finalizers: list[str] | None = None


class _Namespace(msgspec.Struct):
    metadata: _Metadata | None = None
    spec: _NamespaceSpec | None = None
    status: dict[str, Any] | None = None


class _Rule(msgspec.Struct):
    verbs: list[str] | None = None
    apiGroups: list[str] | None = None
    resources: list[str] | None = None
    resourceNames: list[str] | None = None
    nonResourceURLs: list[str] | None = None


class _Role(msgspec.Struct):
    metadata: _Metadata | None = None
    rules: list[_Rule] | None = None


class _Subject(msgspec.Struct):
    kind: str
    name: str
    namespace: Text = None


class _RoleRef(msgspec.Struct):
    kind: str
    name: str


class _RoleBinding(msgspec.Struct):
    metadata: _Metadata | None = None
    roleRef: _RoleRef | None = None
    subjects: list[_Subject] | None = None


class _ConfigMap(msgspec.Struct):
    metadata: _Metadata | None = None
    data: Strings = None
    binaryData: Strings = None
    immutable: bool | None = None


class _Event(msgspec.Struct):
    metadata: _Metadata | None = None
    involvedObject: dict[str, str] | None = None
    source: dict[str, str] | None = None
    series: dict[str, Any] | None = None
    count: int | None = None


class _PriorityClass(msgspec.Struct):
    metadata: _Metadata | None = None
    value: int | None = None
    globalDefault: bool | None = None


class _UpdateStrategy(msgspec.Struct):
    type: Text = None
    rollingUpdate: _RollingUpdate | None = None


class _DaemonSetSpec(msgspec.Struct):
    selector: _Selector | None = None
    template: _Template | None = None
    updateStrategy: _UpdateStrategy | None = None
    revisionHistoryLimit: int | None = None


class _DaemonSet(msgspec.Struct):
    metadata: _Metadata | None = None
    spec: _DaemonSetSpec | None = None
    status: dict[str, Any] | None = None


class _JobSpec(msgspec.Struct):
    selector: _Selector | None = None
    template: _Template | None = None
    parallelism: int | None = None
    completions: int | None = None
    backoffLimit: int | None = None
    activeDeadlineSeconds: int | None = None


class _Job(msgspec.Struct):
    metadata: _Metadata | None = None
    spec: _JobSpec | None = None
    status: dict[str, Any] | None = None


class _Secret(msgspec.Struct):
    metadata: _Metadata | None = None
    type: Text = None
    data: Strings = None
    stringData: Strings = None
    immutable: bool | None = None


class _ServiceSpec(msgspec.Struct):
    type: Text = None
    clusterIP: Text = None
    selector: Strings = None
    ports: list[dict[str, Any]] | None = None


class _Service(msgspec.Struct):
    metadata: _Metadata | None = None
    spec: _ServiceSpec | None = None
    status: dict[str, Any] | None = None


_SHAPES: dict[str, type[msgspec.Struct]] = {
    "pods": _Pod,
    "nodes": _Node,
    "namespaces": _Namespace,
    "configmaps": _ConfigMap,
    "secrets": _Secret,
    "services": _Service,
    "events": _Event,
    "daemonsets.apps": _DaemonSet,
    "jobs.batch": _Job,
    "deployments.apps": _Workload,
    "replicasets.apps": _Workload,
    "poddisruptionbudgets.policy": _Budget,
    "priorityclasses.scheduling.k8s.io": _PriorityClass,
    "roles.rbac.authorization.k8s.io": _Role,
    "clusterroles.rbac.authorization.k8s.io": _Role,
    "rolebindings.rbac.authorization.k8s.io": _RoleBinding,
    "clusterrolebindings.rbac.authorization.k8s.io": _RoleBinding,
}


def check(resource: ServedResource, body: Object) -> None:
    """Raise the Status of an object whose fields are not of their types."""
    try:
        msgspec.convert(body, _SHAPES.get(resource.storage, _Any))
    except msgspec.ValidationError as error:
        raise bad_request(
            f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {error}'
        ) from None
