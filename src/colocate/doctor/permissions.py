"""What this identity may do, for each part of the project that needs rights."""

from collections.abc import AsyncIterator, Iterable, Iterator

import msgspec

from colocate.cluster.access_review import Permission, is_allowed
from colocate.cluster.client import Client
from colocate.cluster.errors import ClusterError
from colocate.cluster.resources import Resource
from colocate.doctor.check import DoctorSection, Patient, check
from colocate.doctor.report import CheckResult, good, warn
from colocate.scheduler.sections import Lease


class Use(msgspec.Struct, frozen=True):
    """A part of the project, and the rights that it needs."""

    what: str
    needs: tuple[Permission, ...]


_FOLLOWED = tuple(Permission(verb, resource) for resource in ("nodes", "pods") for verb in ("list", "watch"))
"""Rights of parts that keep a copy of the cluster."""

_TOLD = (Permission("create", "events"), Permission("patch", "events"))
"""Rights of parts that write events about pods."""


def uses(lease: Lease) -> tuple[Use, ...]:
    """Every part that uses the API; the taints writer takes this lease."""
    leases = {"resource": "leases", "group": "coordination.k8s.io", "namespace": lease.namespace}
    return (
        Use(
            "colocate resource list",
            (Permission("list", "nodes"), Permission("get", "nodes"), Permission("list", "pods")),
        ),
        Use("colocate resource advertise and remove", (Permission("patch", "nodes", "status"),)),
        Use("colocate checkpoint diff", (Permission("get", "nodes"), Permission("list", "pods"))),
        Use("colocate scheduler serve", _FOLLOWED),
        Use(
            "colocate scheduler serve --act taints",
            (
                Permission("get", "nodes"),
                Permission("patch", "nodes"),
                Permission("get", **leases, name=lease.name),
                Permission("update", **leases, name=lease.name),
            ),
        ),
        Use(
            "the agent that offers memory",
            # Evictions are allowed by namespace: the check `memory evictions` lists them.
            (*_FOLLOWED, *_TOLD),
        ),
        Use(
            "the agent that shares GPUs",
            # Writing annotations of pods is a separate right; the agent works without it.
            (*_FOLLOWED, Permission("get", "nodes"), Permission("patch", "nodes", "status"), *_TOLD),
        ),
    )


class _User(msgspec.Struct, frozen=True):
    username: str = ""


class _WhoStatus(msgspec.Struct, frozen=True):
    userInfo: _User = _User()


class _Who(msgspec.Struct, frozen=True):
    status: _WhoStatus = _WhoStatus()


_WHO = Resource(
    "selfsubjectreviews", "SelfSubjectReview", "authentication.k8s.io", namespaced=False, shape=_Who
)


@check(DoctorSection.CLUSTER, "permissions")
async def permissions(patient: Patient) -> AsyncIterator[CheckResult]:
    """Ask the API server for every right of every part, and report what is refused."""
    client = patient.client
    who = await _who(client)
    lease = patient.scheduling.config.taints.lease if patient.scheduling else Lease()
    wanted = uses(lease)
    try:
        allowed = {
            each: await is_allowed(client, each) for use in wanted for each in dict.fromkeys(use.needs)
        }
    except ClusterError as error:
        yield warn(f"cannot ask what {who} may do: {error}", "allow it to create selfsubjectaccessreviews")
        return
    served = []
    for use in wanted:
        refused = [each for each in use.needs if not allowed[each]]
        if refused:
            yield warn(
                f"{use.what}: not possible as {who}, who may not {', '.join(map(str, refused))}",
                f"to allow it: {'; '.join(_roles(refused))}; and a binding of each",
            )
        else:
            served.append(use.what)
    if served:
        yield good(f"{who} may do all that these need: {', '.join(served)}")


def _roles(refused: Iterable[Permission]) -> Iterator[str]:
    """The commands that create roles with these rights."""
    verbs: dict[tuple[str, str], list[str]] = {}
    for each in refused:
        verbs.setdefault((each.namespace, each.named), []).append(each.verb)
    for (namespace, resource), some in verbs.items():
        kind = f"-n {namespace} create role" if namespace else "create clusterrole"
        yield f"kubectl {kind} NAME --verb={','.join(some)} --resource={resource}"


async def _who(client: Client) -> str:
    try:
        answer = await client.create(_WHO, {"apiVersion": _WHO.api_version, "kind": _WHO.kind})
    except ClusterError:
        return "this identity"  # API servers before 1.28 do not say who asks.
    return answer.status.userInfo.username or "this identity"
