"""Authorizes requests by the Role, ClusterRole and binding objects in the store.

Not implemented: aggregated cluster roles, and the check that users grant only rights that they have.
"""

from collections.abc import Iterator

import msgspec

from colocate.lab.api.changes import StoreKey
from colocate.lab.api.objects import Object
from colocate.lab.api.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, ROLE_BINDINGS, ROLES
from colocate.lab.api.status import StatusError, forbidden, forbidden_path
from colocate.lab.api.store import ObjectStore
from colocate.lab.api.users import SERVICE_ACCOUNT, User


class Deed(msgspec.Struct, frozen=True):
    """An action that needs a permission."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    """The requested path, where it is not of a resource."""

    @property
    def whole_resource(self) -> str:
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


class Authorizer:
    """Reads the roles from the store at every check, so that a binding takes effect at once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def check(self, user: User, deed: Deed) -> None:
        """Raise the Status of an action that the user may not take."""
        if not self.allows(user, deed):
            raise refusal(user, deed)

    def allows(self, user: User, deed: Deed) -> bool:
        return user.is_master or any(_covers(rule, deed) for rule in self.rules(user, deed.namespace))

    def rules(self, user: User, namespace: str) -> Iterator[Object]:
        """Every rule that is bound to the user, in a namespace or cluster-wide."""
        for stored in self._store.items(CLUSTER_ROLE_BINDINGS.storage):
            if _binds(stored.body, user, ""):
                yield from self._role_rules(stored.body["roleRef"], "")
        if namespace:
            for stored in self._store.items(ROLE_BINDINGS.storage, namespace):
                if _binds(stored.body, user, namespace):
                    yield from self._role_rules(stored.body["roleRef"], namespace)

    def _role_rules(self, reference: Object, namespace: str) -> list[Object]:
        if reference["kind"] == "ClusterRole":
            role = self._store.get(StoreKey(CLUSTER_ROLES.storage, "", reference["name"]))
        else:
            role = self._store.get(StoreKey(ROLES.storage, namespace, reference["name"]))
        return (role.body.get("rules") or []) if role else []


def refusal(user: User, deed: Deed) -> StatusError:
    """The Status of a forbidden action, worded as by a real server."""
    if deed.path:
        return forbidden_path(user.name, deed.verb, deed.path)
    scope = f'in the namespace "{deed.namespace}"' if deed.namespace else "at the cluster scope"
    why = (
        f'User "{user.name}" cannot {deed.verb} resource "{deed.whole_resource}" '
        f'in API group "{deed.group}" {scope}'
    )
    qualified = f"{deed.resource}.{deed.group}" if deed.group else deed.resource
    return forbidden(qualified, deed.name, why)


def _binds(binding: Object, user: User, namespace: str) -> bool:
    return any(_is_subject(subject, user, namespace) for subject in binding.get("subjects") or [])


def _is_subject(subject: Object, user: User, namespace: str) -> bool:
    match subject["kind"]:
        case "User":
            return bool(subject["name"] == user.name)
        case "Group":
            return subject["name"] in user.groups
        case "ServiceAccount":
            home = subject.get("namespace") or namespace
            return user.name == f"{SERVICE_ACCOUNT}{home}:{subject['name']}"
    return False


def _covers(rule: Object, deed: Deed) -> bool:
    if not _listed(rule.get("verbs"), deed.verb):
        return False
    if deed.path:
        return any(_covers_path(pattern, deed.path) for pattern in rule.get("nonResourceURLs") or [])
    names = rule.get("resourceNames")
    return (
        _listed(rule.get("apiGroups"), deed.group)
        and _covers_resource(rule.get("resources") or [], deed)
        and (not names or deed.name in names)
    )


def _listed(given: list[str] | None, wanted: str) -> bool:
    return given is not None and ("*" in given or wanted in given)


def _covers_resource(given: list[str], deed: Deed) -> bool:
    if "*" in given or deed.whole_resource in given:
        return True
    return bool(deed.subresource) and f"*/{deed.subresource}" in given


def _covers_path(pattern: str, path: str) -> bool:
    return pattern == path or (pattern.endswith("*") and path.startswith(pattern[:-1]))
