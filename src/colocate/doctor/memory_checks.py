"""Whether this machine can offer memory: control groups, capabilities, swap, far nodes, reserves, the ladder, and
where its agent may evict."""

import asyncio
import os
from collections.abc import AsyncIterator

from colocate.cluster.errors import ClusterError, NotFound
from colocate.cluster.resources import NODES
from colocate.doctor.check import DoctorSection, Patient, check, is_there
from colocate.doctor.report import CheckResult, absent, good, no_right, warn
from colocate.errors import UserError
from colocate.host import cgroups
from colocate.host.memory_capabilities import MemoryCapabilities, memory_capabilities
from colocate.host.node_memory import read_node_memory
from colocate.memory import MemorySettings, far_ids, rungs_here, way_back, why_no_demotion
from colocate.memory.agent.cluster_view import ask_configz
from colocate.memory.agent.control import REPORT, AskReport
from colocate.memory.agent.objects import ApiNode, reserves
from colocate.memory.agent.report import evictor_binding
from colocate.model.figures import amount
from colocate.model.memory import MemoryControls, NodeMemory
from colocate.wire import control_socket as control


def _look() -> MemoryCapabilities:
    return memory_capabilities(cgroups.find_tree())


@check(DoctorSection.MACHINE, "memory")
async def memory(patient: Patient) -> AsyncIterator[CheckResult]:
    """What offering memory needs: where pods are, whether they can be limited, what the kernel measures."""
    found = await asyncio.to_thread(_look)
    for what, capability, remedy in (
        (
            "pods",
            found.pods,
            "start the kubelet; if it uses another cgroupRoot, set memory.cgroupRoot to it",
        ),
        (
            "limits",
            found.limits,
            "in a container: as root, with the host's /sys/fs/cgroup mounted writable",
        ),
    ):
        told = f"{what}: {capability.found}"
        if capability.here:
            yield good(told)
        elif what == "limits" and os.geteuid() != 0:
            yield no_right()
        else:
            yield warn(told, remedy)
    if found.swap.here and not found.swap_limits.here:
        yield warn(
            f"swap: {found.swap.found}, and pods cannot be kept from using it: {found.swap_limits.found}",
            "switch it off with swapoff -a, or boot with swapaccount=1",
        )
    else:
        yield good(f"swap: {found.swap.found}")
    for what, capability in (
        ("pressure", found.node_pressure),
        ("pressure of pods", found.pod_pressure),
        ("far nodes", found.far_nodes),
        ("far by move_pages", found.migration),
    ):
        # Without these there are fewer rungs, or a less careful reclaim: no fault.
        yield (
            good(f"{what}: {capability.found}") if capability.here else absent(f"{what}: {capability.found}")
        )
    node = await asyncio.to_thread(read_node_memory)
    yield _demotion(found.controls, node)


def _demotion(controls: MemoryControls, node: NodeMemory) -> CheckResult:
    """Whether the kernel's demotion to far memory is available, or what it lacks."""
    allowed = MemorySettings(demotion=True)
    far = far_ids(node, allowed.far_nodes)
    if missing := "there is no far NUMA node" if not far else why_no_demotion(controls, far, allowed):
        return absent(f"far by demotion: {missing}")
    switch = "on already" if controls.demotion.enabled else "off, and can be switched on"
    return good(
        "far by demotion: possible, without rights over processes; the kernel's switch is "
        f"{switch}; used if memory.demotion is true; the way back: {way_back(controls)}"
    )


@check(DoctorSection.MACHINE, "memory ladder")
async def ladder(patient: Patient) -> AsyncIterator[CheckResult]:
    """Which rungs this machine has, and why it lacks the others."""
    found = await asyncio.to_thread(_look)
    node = await asyncio.to_thread(read_node_memory)
    settings = MemorySettings()
    if not found.limits.here and os.geteuid() != 0:
        yield no_right()
        return
    rungs = rungs_here(found.controls, far_ids(node, settings.far_nodes), settings)
    here = [f"{each.rung} ({each.how})" for each in rungs if each.is_here]
    yield good(f"the agent can take memory back by: {'; '.join(here)}")
    for each in rungs:
        if not each.is_here:
            yield absent(f"not by {each.rung}: {each.missing}")


@check(DoctorSection.MACHINE, "memory evictions")
async def evictions(patient: Patient) -> AsyncIterator[CheckResult]:
    """In which namespaces the agent here may evict: it asks the API server with its own identity."""
    if not is_there(patient.control_socket):
        yield absent(f"no agent runs here ({patient.control_socket} does not exist)")
        return
    try:
        report = await control.ask(patient.control_socket, REPORT, AskReport())
    except UserError as error:
        yield absent(f"no agent says where it may evict: {error}")
        return
    for namespace in report.without_eviction:
        yield warn(
            f"the agent offers {report.resource} to pods of {namespace} but may not evict them",
            f"to allow it: {evictor_binding(namespace)}",
        )
    if not report.without_eviction:
        yield good("the agent may evict in every namespace with blocks, according to the API server")


@check(DoctorSection.CLUSTER, "memory reserves")
async def kubelet_reserves(patient: Patient) -> AsyncIterator[CheckResult]:
    """What the kubelet keeps from pods and the agent never offers, by its configuration or the node's allocatable."""
    try:
        node = await patient.client.get(NODES.read_as(ApiNode), patient.node)
    except NotFound:
        yield absent(f"the cluster has no node {patient.node}, so nothing is reserved on it")
        return
    try:
        config = await ask_configz(patient.client, patient.node)
    except ClusterError as error:
        config, silent = None, str(error)
    kept = reserves(node, config)
    if kept.capacity is not None and kept.allocatable is not None:
        yield good(
            f"the node keeps {amount(kept.capacity - kept.allocatable)} of {amount(kept.capacity)} from pods"
        )
    if config is not None and kept.eviction_hard is not None:
        yield good(f"the kubelet evicts below {amount(kept.eviction_hard)} available")
    elif config is None:
        yield good(
            "the agent takes all memory that the node keeps from pods (at least 100 MiB) as the kubelet's "
            f"eviction threshold, because it cannot ask for the configuration: {silent}"
        )
    if not kept.kube_reserved and kept.capacity == kept.allocatable:
        yield warn(
            "the kubelet keeps nothing for the system: kubeReserved, systemReserved and evictionHard are 0",
            "set them in the kubelet's configuration, or give memory.margin a larger share",
        )
