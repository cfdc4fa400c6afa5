"""Rights in an embedded cluster: a role, bound to who is to have it."""

from collections.abc import Iterable, Mapping
from typing import Any

from colocate.lab.api.registry import Registry
from colocate.lab.api.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, ROLE_BINDINGS, ROLES


def user(name: str) -> dict[str, str]:
    return {"kind": "User", "name": name}


def bind_role(
    registry: Registry,
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
