"""Rights in an embedded cluster: a role bound to who is to have it, or manifests of examples/ as kubectl applies."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from colocate.lab.api.objects import uid_of
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    LEASES,
    NAMESPACES,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
)
from colocate.lab.api.server import ApiServer

EXAMPLES = Path(__file__).parents[2] / "examples"
_KINDS = {
    each.kind: each
    for each in (
        *(NAMESPACES, SERVICE_ACCOUNTS, LEASES),
        *(ROLES, ROLE_BINDINGS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS),
    )
}

Right = tuple[str, str, str]
"""A role, one of its resources, one of its verbs on it."""


def user(name: str) -> dict[str, str]:
    return {"kind": "User", "name": name}


def bind_role(
    registry: ObjectRegistry,
    name: str,
    rules: Iterable[Mapping[str, Any]],
    subject: Mapping[str, str],
    namespace: str = "",
) -> None:
    """A new role of this name, bound to a subject, in a namespace or cluster-wide."""
    role, binding = (ROLES, ROLE_BINDINGS) if namespace else (CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS)
    registry.create(role, namespace, {"metadata": {"name": name}, "rules": [dict(rule) for rule in rules]})
    reference = {"kind": role.kind, "name": name}
    body = {"metadata": {"name": name}, "roleRef": reference, "subjects": [dict(subject)]}
    registry.create(binding, namespace, body)


def documents(*files: str) -> list[dict[str, Any]]:
    """The objects of manifests below examples/."""
    return [each for file in files for each in yaml.safe_load_all((EXAMPLES / file).read_text())]


def rights(*files: str) -> list[Right]:
    """Every single right that manifests give."""
    return [
        (_name(role), resource, verb)
        for role in documents(*files)
        for rule in role.get("rules", ())
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]


def apply(server: ApiServer, *files: str, without: Right | None = None) -> None:
    """What kubectl would make of manifests that is about rights, but for one of them."""
    for each in documents(*files):
        kind = _KINDS.get(each["kind"])
        namespace = each["metadata"].get("namespace", "")
        if kind is None or server.registry.find(kind, namespace, _name(each)) is not None:
            continue
        if "rules" in each:
            each["rules"] = [
                {**rule, "resources": [resource], "verbs": [verb]}
                for rule in each["rules"]
                for resource in rule["resources"]
                for verb in rule["verbs"]
                if (_name(each), resource, verb) != without
            ]
        server.registry.create(kind, namespace, each)


def account_token(server: ApiServer, account: str, namespace: str = "kube-system") -> str:
    """A token as the kubelet mounts it into the pods of a service account."""
    stored = server.registry.find(SERVICE_ACCOUNTS, namespace, account)
    assert stored is not None, f"there is no service account {account}"
    return server.authenticator.issue(namespace, account, uid_of(stored.body), 3600, [])


def _name(each: Mapping[str, Any]) -> str:
    return str(each["metadata"]["name"])
