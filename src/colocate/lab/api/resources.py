"""The table of resource kinds that are served. Discovery, paths and openapi are generated from it.

To serve another kind, add a line here, and defaults, rules and columns where the generic ones are not enough.
"""

import base64
import hashlib
from collections.abc import Iterator

import msgspec

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_READ_AND_WRITE = ("get", "patch", "update")


class Subresource(msgspec.Struct, frozen=True):
    """A part of an object with its own path."""

    name: str
    verbs: tuple[str, ...]
    kind: str = ""
    """The kind of its body; empty means the kind of the resource."""
    group: str = ""
    version: str = ""


class ServedResource(msgspec.Struct, frozen=True):
    """A kind of object, as the API names it."""

    plural: str
    kind: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True
    short: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    subresources: tuple[Subresource, ...] = ()
    generation: bool = False
    """Whether metadata.generation counts the changes of its spec."""
    stored_as: str = ""
    """The resource whose objects it shows, if it is another view of them."""
    measured: bool = False
    """Whether its objects are computed for each request and not stored."""

    @property
    def singular(self) -> str:
        # A metrics-server has none: `kubectl get node` means the nodes themselves.
        return "" if self.measured else self.kind.lower()

    @property
    def qualified(self) -> str:
        """The name in messages and in the store."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def storage(self) -> str:
        return self.stored_as or self.qualified

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def is_stored(self) -> bool:
        """Whether its objects are stored, or only answered."""
        return "get" in self.verbs and not self.measured

    @property
    def has_status(self) -> bool:
        return any(one.name == "status" for one in self.subresources)

    @property
    def opening(self) -> bytes:
        """The JSON before a bare object's fields: kind and apiVersion."""
        return f'{{"kind":"{self.kind}","apiVersion":"{self.api_version}",'.encode()

    @property
    def storage_version_hash(self) -> str:
        group = self.stored_as.partition(".")[2] if self.stored_as else self.group
        digest = hashlib.sha256(f"{group}/{self.version}/{self.kind}".encode()).digest()
        return base64.b64encode(digest[:8]).decode()

    def subresource(self, name: str) -> Subresource | None:
        return next((one for one in self.subresources if one.name == name), None)


_STATUS = Subresource("status", _READ_AND_WRITE)
_SCALE = Subresource("scale", _READ_AND_WRITE, "Scale", "autoscaling", "v1")
_POD_PARTS = (
    Subresource("binding", ("create",), "Binding"),
    Subresource("eviction", ("create",), "Eviction", "policy", "v1"),
    Subresource("exec", ("create", "get"), "PodExecOptions"),
    Subresource("log", ("get",)),
    _STATUS,
)
_TOKEN = Subresource("token", ("create",), "TokenRequest", "authentication.k8s.io", "v1")
_RBAC = "rbac.authorization.k8s.io"
_AUTHN = "authentication.k8s.io"
_AUTHZ = "authorization.k8s.io"
_DRA = "resource.k8s.io"
_STORAGE = "storage.k8s.io"
_ADMISSION = "admissionregistration.k8s.io"
_CREATE = ("create",)
_METRICS = "metrics.k8s.io"
_ASK = ("get", "list")
_READ = ("get", "list", "watch")
_NAMESPACE_VERBS = tuple(verb for verb in ALL_VERBS if verb != "deletecollection")
_NAMESPACE_PARTS = (Subresource("finalize", ("update",)), _STATUS)

BINDINGS = ServedResource("bindings", "Binding", verbs=_CREATE)
CONFIG_MAPS = ServedResource("configmaps", "ConfigMap", short=("cm",))
EVENTS = ServedResource("events", "Event", short=("ev",))
NAMESPACES = ServedResource(
    "namespaces",
    "Namespace",
    namespaced=False,
    short=("ns",),
    verbs=_NAMESPACE_VERBS,
    subresources=_NAMESPACE_PARTS,
)
NODES = ServedResource("nodes", "Node", namespaced=False, short=("no",), subresources=(_STATUS,))
PODS = ServedResource(
    "pods", "Pod", short=("po",), categories=("all",), subresources=_POD_PARTS, generation=True
)
SERVICE_ACCOUNTS = ServedResource("serviceaccounts", "ServiceAccount", short=("sa",), subresources=(_TOKEN,))
DEPLOYMENTS = ServedResource(
    "deployments",
    "Deployment",
    "apps",
    short=("deploy",),
    categories=("all",),
    subresources=(_SCALE, _STATUS),
    generation=True,
)
REPLICA_SETS = ServedResource(
    "replicasets",
    "ReplicaSet",
    "apps",
    short=("rs",),
    categories=("all",),
    subresources=(_SCALE, _STATUS),
    generation=True,
)
DAEMON_SETS = ServedResource(
    "daemonsets",
    "DaemonSet",
    "apps",
    short=("ds",),
    categories=("all",),
    subresources=(_STATUS,),
    generation=True,
)
JOBS = ServedResource("jobs", "Job", "batch", categories=("all",), subresources=(_STATUS,), generation=True)
SECRETS = ServedResource("secrets", "Secret")
SERVICES = ServedResource("services", "Service", short=("svc",), categories=("all",), subresources=(_STATUS,))
EVENTS_V1 = ServedResource("events", "Event", "events.k8s.io", short=("ev",), stored_as="events")
LEASES = ServedResource("leases", "Lease", "coordination.k8s.io")
DISRUPTION_BUDGETS = ServedResource(
    "poddisruptionbudgets",
    "PodDisruptionBudget",
    "policy",
    short=("pdb",),
    subresources=(_STATUS,),
    generation=True,
)
PRIORITY_CLASSES = ServedResource(
    "priorityclasses", "PriorityClass", "scheduling.k8s.io", namespaced=False, short=("pc",), generation=True
)
CLUSTER_ROLES = ServedResource("clusterroles", "ClusterRole", _RBAC, namespaced=False)
CLUSTER_ROLE_BINDINGS = ServedResource("clusterrolebindings", "ClusterRoleBinding", _RBAC, namespaced=False)
ROLES = ServedResource("roles", "Role", _RBAC)
ROLE_BINDINGS = ServedResource("rolebindings", "RoleBinding", _RBAC)

ADMISSION_POLICIES = (
    ServedResource(
        "validatingadmissionpolicies",
        "ValidatingAdmissionPolicy",
        _ADMISSION,
        namespaced=False,
        subresources=(_STATUS,),
        generation=True,
    ),
    ServedResource(
        "validatingadmissionpolicybindings",
        "ValidatingAdmissionPolicyBinding",
        _ADMISSION,
        namespaced=False,
        generation=True,
    ),
)
"""Stored so that our own manifests can be applied; nothing here evaluates them."""

NODE_METRICS = ServedResource(
    "nodes", "NodeMetrics", _METRICS, "v1beta1", namespaced=False, verbs=_ASK, measured=True
)
POD_METRICS = ServedResource("pods", "PodMetrics", _METRICS, "v1beta1", verbs=_ASK, measured=True)

NEVER_ANY = (
    ServedResource("persistentvolumeclaims", "PersistentVolumeClaim", verbs=_READ, short=("pvc",)),
    ServedResource("persistentvolumes", "PersistentVolume", namespaced=False, verbs=_READ, short=("pv",)),
    ServedResource(
        "replicationcontrollers", "ReplicationController", verbs=_READ, short=("rc",), categories=("all",)
    ),
    ServedResource("statefulsets", "StatefulSet", "apps", verbs=_READ, short=("sts",), categories=("all",)),
    ServedResource("deviceclasses", "DeviceClass", _DRA, namespaced=False, verbs=_READ),
    ServedResource("resourceclaims", "ResourceClaim", _DRA, verbs=_READ),
    ServedResource("resourceslices", "ResourceSlice", _DRA, namespaced=False, verbs=_READ),
    ServedResource("csidrivers", "CSIDriver", _STORAGE, namespaced=False, verbs=_READ),
    ServedResource("csinodes", "CSINode", _STORAGE, namespaced=False, verbs=_READ),
    ServedResource("csistoragecapacities", "CSIStorageCapacity", _STORAGE, verbs=_READ),
    ServedResource("storageclasses", "StorageClass", _STORAGE, namespaced=False, verbs=_READ, short=("sc",)),
    ServedResource("volumeattachments", "VolumeAttachment", _STORAGE, namespaced=False, verbs=_READ),
)
"""Kinds that a stock kube-scheduler watches and waits for. They cannot be created here: nothing would act on
them."""

RESOURCES = (
    BINDINGS,
    CONFIG_MAPS,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    DAEMON_SETS,
    DEPLOYMENTS,
    REPLICA_SETS,
    EVENTS_V1,
    ServedResource("selfsubjectreviews", "SelfSubjectReview", _AUTHN, namespaced=False, verbs=_CREATE),
    ServedResource("tokenreviews", "TokenReview", _AUTHN, namespaced=False, verbs=_CREATE),
    ServedResource("localsubjectaccessreviews", "LocalSubjectAccessReview", _AUTHZ, verbs=_CREATE),
    ServedResource(
        "selfsubjectaccessreviews", "SelfSubjectAccessReview", _AUTHZ, namespaced=False, verbs=_CREATE
    ),
    ServedResource(
        "selfsubjectrulesreviews", "SelfSubjectRulesReview", _AUTHZ, namespaced=False, verbs=_CREATE
    ),
    ServedResource("subjectaccessreviews", "SubjectAccessReview", _AUTHZ, namespaced=False, verbs=_CREATE),
    JOBS,
    DISRUPTION_BUDGETS,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    ROLE_BINDINGS,
    ROLES,
    PRIORITY_CLASSES,
    LEASES,
    *ADMISSION_POLICIES,
    *NEVER_ANY,
    NODE_METRICS,
    POD_METRICS,
)

_BY_PATH = {(one.group, one.version, one.plural): one for one in RESOURCES}
_BY_KIND = {(one.api_version, one.kind): one for one in RESOURCES}


def find(group: str, version: str, plural: str) -> ServedResource | None:
    """The resource that a path names."""
    return _BY_PATH.get((group, version, plural))


def of_kind(api_version: str, kind: str) -> ServedResource | None:
    """The resource of an object, as an owner reference names it."""
    return _BY_KIND.get((api_version, kind))


def in_group(group: str, version: str) -> Iterator[ServedResource]:
    return (one for one in RESOURCES if (one.group, one.version) == (group, version))


def groups() -> list[tuple[str, str]]:
    """Every named group with its version, in the order of the table."""
    return list(dict.fromkeys((one.group, one.version) for one in RESOURCES if one.group))


def stored() -> Iterator[ServedResource]:
    """Every resource whose objects are stored, without further views of them."""
    return (one for one in RESOURCES if one.is_stored and not one.stored_as)
