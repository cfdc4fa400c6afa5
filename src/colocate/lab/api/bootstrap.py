"""Creates the initial objects of a cluster: namespaces, priority classes and a few roles."""

from colocate.lab.api import resources
from colocate.lab.api.objects import Object
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.resources import ServedResource
from colocate.lab.api.users import AUTHENTICATED, MASTERS, UNAUTHENTICATED

NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_READ = ["get", "list", "watch"]
_HEALTH = ["/healthz", "/livez", "/readyz", "/version", "/version/"]
_DISCOVERY = ["/api", "/api/*", "/apis", "/apis/*", *_HEALTH, "/openapi", "/openapi/*"]
_VIEWED = {
    "": ["configmaps", "events", "namespaces", "pods", "pods/status", "serviceaccounts"],
    "apps": [
        f"{plural}{part}" for plural in ("deployments", "replicasets") for part in ("", "/scale", "/status")
    ],
    "metrics.k8s.io": ["nodes", "pods"],
    "policy": ["poddisruptionbudgets", "poddisruptionbudgets/status"],
}


def fill(registry: ObjectRegistry) -> None:
    """Create the objects that are missing; existing ones stay unchanged."""
    for name in NAMESPACES:
        _ensure(registry, resources.NAMESPACES, {}, name)
    for name, rules in _roles().items():
        _ensure(registry, resources.CLUSTER_ROLES, {"rules": rules}, name)
    for role, groups in _BINDINGS.items():
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
        subjects = [{"kind": "Group", "name": group} for group in groups]
        body: Object = {"roleRef": reference, "subjects": subjects}
        _ensure(registry, resources.CLUSTER_ROLE_BINDINGS, body, role)
    for name, value in (("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)):
        _ensure(registry, resources.PRIORITY_CLASSES, {"value": value}, name)


_BINDINGS = {
    "cluster-admin": [MASTERS],
    "system:basic-user": [AUTHENTICATED],
    "system:discovery": [AUTHENTICATED],
    "system:public-info-viewer": [AUTHENTICATED, UNAUTHENTICATED],
}


def _roles() -> dict[str, list[Object]]:
    reviews = ["selfsubjectaccessreviews", "selfsubjectrulesreviews"]
    return {
        "cluster-admin": [
            {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
            {"nonResourceURLs": ["*"], "verbs": ["*"]},
        ],
        "view": [
            {"apiGroups": [group], "resources": viewed, "verbs": _READ} for group, viewed in _VIEWED.items()
        ],
        "system:basic-user": [
            {"apiGroups": ["authorization.k8s.io"], "resources": reviews, "verbs": ["create"]},
            {
                "apiGroups": ["authentication.k8s.io"],
                "resources": ["selfsubjectreviews"],
                "verbs": ["create"],
            },
        ],
        "system:discovery": [{"nonResourceURLs": _DISCOVERY, "verbs": ["get"]}],
        "system:public-info-viewer": [{"nonResourceURLs": _HEALTH, "verbs": ["get"]}],
    }


def _ensure(registry: ObjectRegistry, resource: ServedResource, body: Object, name: str) -> None:
    if registry.find(resource, "", name) is None:
        registry.create(resource, "", {"metadata": {"name": name}, **body})
