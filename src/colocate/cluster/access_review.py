"""Asks the API server by SelfSubjectAccessReview whether this identity may do something, without doing it.

The server answers for every authoriser, not only for RBAC.
"""

import msgspec

from colocate.cluster.client import Client
from colocate.cluster.resources import Resource


class Permission(msgspec.Struct, frozen=True):
    """One permission: a verb on a resource."""

    verb: str
    resource: str
    subresource: str = ""
    group: str = ""
    namespace: str = ""
    """The namespace; empty means all namespaces."""
    name: str = ""
    """The name of the object; empty means any object."""

    @property
    def named(self) -> str:
        """The resource as kubectl and RBAC write it."""
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{resource}/{self.subresource}" if self.subresource else resource

    def __str__(self) -> str:
        return f"{self.verb} {self.named}{f' in {self.namespace}' if self.namespace else ''}"


class _ReviewStatus(msgspec.Struct, frozen=True):
    allowed: bool = False


class _Review(msgspec.Struct, frozen=True):
    status: _ReviewStatus = _ReviewStatus()


_REVIEWS = Resource(
    "selfsubjectaccessreviews",
    "SelfSubjectAccessReview",
    "authorization.k8s.io",
    namespaced=False,
    shape=_Review,
)


async def is_allowed(client: Client, permission: Permission) -> bool:
    """Whether the permission is granted; ClusterError where the server does not answer."""
    attributes = {
        "verb": permission.verb,
        "group": permission.group,
        "resource": permission.resource,
        "subresource": permission.subresource,
        "namespace": permission.namespace,
        "name": permission.name,
    }
    review = {
        "apiVersion": _REVIEWS.api_version,
        "kind": _REVIEWS.kind,
        "spec": {"resourceAttributes": {name: value for name, value in attributes.items() if value}},
    }
    return (await client.create(_REVIEWS, review)).status.allowed
