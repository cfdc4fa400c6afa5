"""What this identity may do, by what of this project needs it."""

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
    """What of this project asks the API for something, and for what."""

    what: str
    needs: tuple[Permission, ...]


_FOLLOWED = tuple(Permission(verb, resource) for resource in ("nodes", "pods") for verb in ("list", "watch"))
"""For whoever keeps a copy of the cluster."""

_TOLD = (Permission("create", "events"), Permission("patch", "events"))
"""For whoever tells what was done to pods."""


def uses(lease: Lease) -> tuple[Use, ...]:
    """All that ask the API for anything; one of them takes this lease."""
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
            "the agent that sells memory",
            # Evictions are a right by namespace: `memory evictions` says of which.
            (*_FOLLOWED, *_TOLD),
        ),
        Use(
            "the agent that shares GPUs",
            # To write annotations of pods is a right of its own, without which it works.
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
    """What each part of this project asks for, and who is refused it."""
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
    """The commands that make roles of them."""
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
        return "this identity"  # The API server learned to answer that in 1.28.
    return answer.status.userInfo.username or "this identity"
