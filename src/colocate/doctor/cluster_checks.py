"""The API server, and what it says about this node."""

from collections.abc import AsyncIterator

import msgspec

from colocate.cluster.errors import ClusterError, Doing, Forbidden, NotFound
from colocate.cluster.resources import NODES
from colocate.cluster.transport import Request
from colocate.doctor.check import DoctorSection, Patient, check
from colocate.doctor.report import CheckResult, bad, good, warn
from colocate.host.identity import NODE_NAME

_CLOCKS_APART = 30.0


class _Version(msgspec.Struct, frozen=True):
    gitVersion: str


class _Condition(msgspec.Struct, frozen=True):
    type: str
    status: str
    message: str = ""


class _Status(msgspec.Struct, frozen=True):
    conditions: tuple[_Condition, ...] = ()


class _Spec(msgspec.Struct, frozen=True):
    unschedulable: bool = False


class _Node(msgspec.Struct, frozen=True):
    status: _Status = _Status()
    spec: _Spec = _Spec()


@check(DoctorSection.CLUSTER, "api server")
async def api_server(patient: Patient) -> AsyncIterator[CheckResult]:
    """It answers and accepts our credential; its clock agrees with ours."""
    client = patient.client
    where = f"{client.connection.server} (from {client.connection.origin})"
    try:
        answer = await client.ask(Request(Doing("get", "/version"), "GET", "/version", {}))
        version = msgspec.json.decode(answer, type=_Version).gitVersion
    except (ClusterError, ValueError) as error:
        yield bad(
            f"{where}: {error}", "check the address, the network and the credential; see --help for the flags"
        )
        return
    yield good(f"{where} answers: Kubernetes {version}")
    offset = client.clock_offset
    if offset is not None and abs(offset) > _CLOCKS_APART:
        yield warn(
            f"its clock is {offset:+.0f} s from this machine's",
            "set both clocks by NTP: the API server's times look older or newer than they are",
        )


@check(DoctorSection.CLUSTER, "node")
async def node(patient: Patient) -> AsyncIterator[CheckResult]:
    """The node of this machine exists, is Ready and is not cordoned."""
    try:
        found = await patient.client.get(NODES.read_as(_Node), patient.node)
    except NotFound:
        yield warn(
            f"the cluster has no node {patient.node}",
            f"give this machine's node with --node or {NODE_NAME}; if this machine is not a node, ignore this",
        )
        return
    except Forbidden as error:
        yield warn(str(error), "allow this identity to get nodes")
        return
    conditions = {condition.type: condition for condition in found.status.conditions}
    ready = conditions.get("Ready")
    if ready is None or ready.status != "True":
        yield bad(
            f"{patient.node} is not Ready{f': {ready.message}' if ready and ready.message else ''}",
            "read the kubelet's log: journalctl -u kubelet",
        )
    pressure = [name for name, c in conditions.items() if name.endswith("Pressure") and c.status == "True"]
    if pressure:
        yield warn(f"{patient.node} has {', '.join(pressure)}", "free that resource, or move pods away")
    if found.spec.unschedulable:
        yield warn(
            f"{patient.node} is cordoned", f"kubectl uncordon {patient.node}, when the maintenance is done"
        )
    if ready and ready.status == "True" and not pressure and not found.spec.unschedulable:
        yield good(f"{patient.node} is Ready")
