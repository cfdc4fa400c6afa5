"""Parses a path and a method into a resource, an object and a verb. Pure."""

import msgspec

from colocate.lab.api import resources
from colocate.lab.api.rbac import Deed
from colocate.lab.api.resources import NAMESPACES, ServedResource
from colocate.lab.api.status import absent_here, method_not_allowed, no_such_path

_ONE = {"GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "POST": "create"}
_ABSENT_PARTS = {
    f"pods/{part}" for part in ("attach", "portforward", "proxy", "ephemeralcontainers", "resize")
}
"""Subresources that a real server has and this one does not; the answer says so."""
_MANY = {"GET": "list", "HEAD": "list", "POST": "create", "DELETE": "deletecollection"}


class Target(msgspec.Struct, frozen=True):
    """A request for a resource."""

    verb: str
    resource: ServedResource
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    def deed(self, selected_name: str = "") -> Deed:
        """The permission that the request needs; a list or watch of one name counts as a request for that name."""
        resource = self.resource
        # A namespace belongs to itself: roles in it may allow reading it.
        namespace = self.name if resource is NAMESPACES else self.namespace
        name = self.name or selected_name
        return Deed(self.verb, resource.group, resource.plural, self.subresource, namespace, name)


def parse(method: str, path: str, watch: bool) -> Target | None:
    """The target of a path below /api/v1 or /apis/<group>/<version>; None where the path is not of a resource.

    Raises the Status of an unknown resource or method.
    """
    steps = path.strip("/").split("/")
    match steps:
        case ["api", version, first, *rest]:
            group = ""
        case ["apis", group, version, first, *rest]:
            pass
        case _:
            return None
    namespace = ""
    if first == "namespaces" and len(rest) >= 2 and not (len(rest) == 2 and _is_namespace_part(rest[1])):
        namespace, first, *rest = rest
        if not namespace:
            raise no_such_path()
    resource = resources.find(group, version, first)
    if resource is None or len(rest) > 2 or (namespace and not resource.namespaced) or "" in rest:
        raise no_such_path()
    name, subresource = [*rest, "", ""][:2]
    return _target(method, resource, namespace, name, subresource, watch)


def _is_namespace_part(step: str) -> bool:
    return NAMESPACES.subresource(step) is not None


def _target(
    method: str, resource: ServedResource, namespace: str, name: str, subresource: str, watch: bool
) -> Target:
    verb = (_ONE if name else _MANY).get(method)
    if verb is None or (verb == "create" and name and not subresource):
        raise method_not_allowed()
    if resource.namespaced and not namespace and (name or verb not in ("list", "watch")):
        raise method_not_allowed()
    if subresource:
        part = resource.subresource(subresource)
        if part is None:
            if f"{resource.plural}/{subresource}" in _ABSENT_PARTS:
                raise absent_here(f"{resource.plural}/{subresource}")
            raise no_such_path()
        allowed = part.verbs
    else:
        allowed = resource.verbs
    if verb == "list" and watch:
        verb = "watch"
    if verb not in allowed:
        if resource in resources.NEVER_ANY:
            raise absent_here(f"{resource.plural}: nothing here would act on one")
        raise method_not_allowed()
    return Target(verb, resource, namespace, name, subresource)
