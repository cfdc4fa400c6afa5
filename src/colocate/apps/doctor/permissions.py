"""What this identity may do, against what each command and process needs."""

from collections.abc import AsyncIterator

import msgspec

from colocate.apps.doctor.check import Patient, Section, check
from colocate.apps.doctor.report import Result, good, warn
from colocate.cluster.client import Client
from colocate.cluster.errors import ClusterError
from colocate.cluster.resources import Resource


class Permission(msgspec.Struct, frozen=True):
    """One thing that an identity may be allowed to do, and who of us does it."""

    verb: str
    resource: str
    needed_for: str
    subresource: str = ""
    group: str = ""

    @property
    def named(self) -> str:
        """As kubectl and RBAC write it."""
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{resource}/{self.subresource}" if self.subresource else resource


NEEDED = (
    Permission("list", "nodes", "colocate resource list and scheduler"),
    Permission("list", "pods", "colocate scheduler, resource and checkpoint"),
    Permission("get", "nodes", "colocate resource and checkpoint diff"),
    Permission("patch", "nodes", "colocate resource advertise and remove", subresource="status"),
    Permission("watch", "nodes", "colocate scheduler, and the agent that sells memory"),
    Permission("watch", "pods", "colocate scheduler, and the agent that sells memory"),
    Permission("create", "events", "the agent that sells memory, to say what it does to pods"),
    Permission("patch", "events", "the agent that sells memory, to count what it says again"),
    Permission("create", "pods", "the agent that sells memory, to evict", subresource="eviction"),
    Permission("get", "pods", "the agent that sells memory, to move bare pods that allow it"),
    Permission("create", "pods", "the agent that sells memory, to move bare pods that allow it"),
    Permission("patch", "nodes", "colocate scheduler serve --act taints"),
    Permission("create", "leases", "colocate scheduler serve --act taints", group="coordination.k8s.io"),
    Permission("get", "leases", "colocate scheduler serve --act taints", group="coordination.k8s.io"),
    Permission("update", "leases", "colocate scheduler serve --act taints", group="coordination.k8s.io"),
)
"""Everything that any part of this project asks of the API; `doctor` says what would be refused."""


class _User(msgspec.Struct, frozen=True):
    username: str = ""


class _WhoStatus(msgspec.Struct, frozen=True):
    userInfo: _User = _User()


class _Who(msgspec.Struct, frozen=True):
    status: _WhoStatus = _WhoStatus()


class _MayStatus(msgspec.Struct, frozen=True):
    allowed: bool = False


class _May(msgspec.Struct, frozen=True):
    status: _MayStatus = _MayStatus()


_WHO = Resource(
    "selfsubjectreviews", "SelfSubjectReview", "authentication.k8s.io", namespaced=False, shape=_Who
)
_MAY = Resource(
    "selfsubjectaccessreviews",
    "SelfSubjectAccessReview",
    "authorization.k8s.io",
    namespaced=False,
    shape=_May,
)


@check(Section.CLUSTER, "permissions")
async def permissions(patient: Patient) -> AsyncIterator[Result]:
    """Asked of the API server itself, so that every authoriser counts, not RBAC alone."""
    client = patient.client
    who = await _who(client)
    refused = []
    try:
        for permission in NEEDED:
            if not await _may(client, permission):
                refused.append(permission)
    except ClusterError as error:
        yield warn(
            f"what {who} may do cannot be asked: {error}", "allow it to create selfsubjectaccessreviews"
        )
        return
    for permission in refused:
        yield warn(
            f"{who} may not {permission.verb} {permission.named}, needed for {permission.needed_for}",
            f"kubectl create clusterrole NAME --verb={permission.verb} --resource={permission.named}, "
            f"and a clusterrolebinding of it",
        )
    allowed = len(NEEDED) - len(refused)
    if allowed:
        yield good(f"{who} may do {allowed} of the {len(NEEDED)} things that Colocate ever asks for")


async def _who(client: Client) -> str:
    try:
        answer = await client.create(_WHO, {"apiVersion": _WHO.api_version, "kind": _WHO.kind})
    except ClusterError:
        return "this identity"  # The API server learned to answer that in 1.28.
    return answer.status.userInfo.username or "this identity"


async def _may(client: Client, permission: Permission) -> bool:
    attributes = {
        "verb": permission.verb,
        "group": permission.group,
        "resource": permission.resource,
        "subresource": permission.subresource,
    }
    review = {
        "apiVersion": _MAY.api_version,
        "kind": _MAY.kind,
        "spec": {"resourceAttributes": {name: value for name, value in attributes.items() if value}},
    }
    return (await client.create(_MAY, review)).status.allowed
