"""Whether the API server would let this identity do something: asked by SelfSubjectAccessReview, and nothing is done.

The server itself is asked, so that every authoriser counts, not RBAC alone.
"""

import msgspec

from colocate.cluster.client import Client
from colocate.cluster.resources import Resource


class Permission(msgspec.Struct, frozen=True):
    """One thing that an identity may be allowed to do."""

    verb: str
    resource: str
    subresource: str = ""
    group: str = ""
    namespace: str = ""
    """All of them, where it is empty."""
    name: str = ""
    """Any, likewise."""

    @property
    def named(self) -> str:
        """As kubectl and RBAC write it."""
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
    """ClusterError where the server does not say."""
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
