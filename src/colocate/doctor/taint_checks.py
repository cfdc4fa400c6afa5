"""Heat taints: whether a process still writes those that nodes have."""

from collections.abc import AsyncIterator

from colocate.cluster.client import Client
from colocate.cluster.lease import held_by
from colocate.cluster.resources import NODES
from colocate.doctor.check import DoctorSection, Patient, check
from colocate.doctor.report import CheckResult, bad, good, warn
from colocate.model.figures import count
from colocate.scheduler.loop.table_feed import WatchedNode
from colocate.scheduler.loop.taints import PREFIX, REMOVAL, tainted
from colocate.scheduler.settings import Act


@check(DoctorSection.LOAD, "taints")
async def taints(patient: Patient) -> AsyncIterator[CheckResult]:
    """A killed scheduler leaves its taints behind, and pods keep avoiding nodes that are no longer hot."""
    assert patient.scheduling is not None
    config = patient.scheduling.config
    if not isinstance(patient.cluster, Client):
        yield bad(
            f"the nodes are unknown without the cluster: {patient.cluster}", "give it with --kubeconfig"
        )
        return
    nodes = tainted(await patient.client.list(NODES.read_as(WatchedNode)))
    if not nodes:
        yield good(f"no node has taints {PREFIX}1 to -4")
        return
    lease = config.taints.lease
    holder = await held_by(patient.client, lease.namespace, lease.name, patient.clock)
    if holder:
        yield good(f"taints show the heat of {count(len(nodes), 'node')}, written by {holder}")
        return
    yield warn(
        f"taints {PREFIX}1 to -4 are on {count(len(nodes), 'node')}, such as {nodes[0]}, but no process writes "
        "them: the lease "
        f"{lease.namespace}/{lease.name} is not held",
        f"start the scheduler, which takes them over, or remove them: {REMOVAL}"
        if Act.TAINTS in config.act
        else f"remove them: {REMOVAL}",
    )
