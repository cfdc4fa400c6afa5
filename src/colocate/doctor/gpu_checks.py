"""GPUs: whether they are healthy, whether a kubelet can handle their devices, whether the records agree."""

import asyncio
import tomllib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

import msgspec

from colocate.aio import in_daemon
from colocate.cluster.errors import NotFound
from colocate.cluster.resources import NODES, PODS, Selection
from colocate.devices.checkpoint import file as checkpoint_file
from colocate.doctor.check import DoctorSection, Patient, check, is_there
from colocate.doctor.gpu_findings import ask_report, gpu_findings
from colocate.doctor.report import CheckResult, absent, good, warn
from colocate.errors import ColocateError, Unavailable, visible
from colocate.gpus import (
    COLOCATE,
    DIALECTS,
    VISIBLE,
    Dialect,
    GpuPod,
    announced,
    asks_of,
    bearable_unit,
    counted_in_limits,
    device_cost,
    message_bytes,
    smallest_unit,
)
from colocate.gpus.agent.report import GpuReport
from colocate.host.gpu_source import GpuReading, GpuUnavailable
from colocate.host.nvml import Nvml
from colocate.kubelet import MESSAGE_LIMIT
from colocate.kubelet.checkpoint import parse
from colocate.kubelet.podresources import listed_pods
from colocate.model import quantity
from colocate.model.device_cost import DEAR_FROM, DeviceCost, kubelet_version
from colocate.model.figures import amount, count
from colocate.model.gpu import Gpu, GpuInventory, Mebibytes

_SHOWN = 5
"""How many pods are named; the rest is counted."""
BY_ENV = "accept-nvidia-visible-devices-envvar-when-unprivileged"
BY_MOUNT = "accept-nvidia-visible-devices-as-volume-mounts"
"""Settings of NVIDIA's container runtime; by default the first is true and the second false."""
_LONGEST_TOML = 1 << 20
_ALMOST = 0.8
"""Fraction of a message to the kubelet from which on a warning is given."""


@check(DoctorSection.MACHINE, "gpus")
async def gpus(patient: Patient) -> AsyncIterator[CheckResult]:
    """The GPUs of this machine, from its agent or else from the driver, and whether a kubelet can handle them."""
    report = await ask_report(patient.control_socket)
    if report is not None:
        for result in _reported(report):
            yield result
        return
    try:
        # A driver that hangs must not keep the command from ending: hence a daemon thread.
        readings = await asyncio.shield(in_daemon(_survey, "gpu survey"))
    except GpuUnavailable as error:
        yield absent(f"no agent shares GPUs here, and no driver reports any: {error}")
        return
    if not readings:
        yield absent("no agent shares GPUs here, and the driver reports none")
        return
    inventory = GpuInventory(
        tuple(
            Gpu(uuid=each.uuid, index=each.index, memory=each.memory >> 20, numa=each.numa, mig=each.mig)
            for each in readings
        )
    )
    yield good(f"no agent shares them; the driver reports {count(len(readings), 'GPU')}")
    unit = max(smallest_unit(inventory.shared, MESSAGE_LIMIT), bearable_unit(inventory.shared))
    if unit > COLOCATE.unit:
        yield warn(
            f"in units of {amount(COLOCATE.unit << 20)}, {count(len(inventory.shared), 'GPU')} would make more "
            "devices than a kubelet can handle",
            f"set the unit of gpus.dialects to {unit}Mi or more, on every node of the cluster",
        )


@check(DoctorSection.MACHINE, "gpu runtime")
async def gpu_runtime(patient: Patient) -> AsyncIterator[CheckResult]:
    """Whether NVIDIA's container runtime gives GPUs to containers that requested none."""
    file = patient.nvidia_runtime
    if not is_there(file):
        yield absent(
            f"{file} does not exist: NVIDIA's container runtime is not set up, or its file is elsewhere"
        )
        return
    try:
        with file.open("rb") as opened:
            text = opened.read(_LONGEST_TOML)
        settings = tomllib.loads(text.decode())
    except (OSError, ValueError, RecursionError) as error:
        yield warn(
            f"{file} cannot be read: {error}", "correct it, or install NVIDIA's container toolkit again"
        )
        return
    by_env, by_mount = settings.get(BY_ENV, True), settings.get(BY_MOUNT, False)
    if by_env is not False:
        yield warn(
            f"a container that requests no GPU gets those that its env, its image or its envFrom names in {VISIBLE}, "
            "or all of them if only CUDA_VERSION is set: "
            f"{file} does not set {BY_ENV} = false",
            'set it, with gpus.injection: cdi for the agent (docs/gpus.md, "What stays open"); '
            "examples/gpus/own-env-policy.yaml covers only the pod's own env",
        )
    else:
        yield good(
            f"no container gets a GPU by {VISIBLE} without being privileged; the agent gives them by CDI"
        )
    if by_mount is not False:
        yield good(
            f"{BY_MOUNT} is set: a pod that mounts the host's /dev/null gets GPUs; forbid hostPath for tenants"
        )


def _survey() -> tuple[GpuReading, ...]:
    driver = Nvml()
    try:
        return driver.survey().gpus
    finally:
        driver.close()


def _reported(report: GpuReport) -> Iterator[CheckResult]:
    for dialect in report.dialects:
        told = f"{dialect.resource}: {dialect.devices} devices of {amount(dialect.unit << 20)}"
        full = dialect.message / MESSAGE_LIMIT
        if full > _ALMOST:
            yield warn(
                f"{told} take {full:.0%} of the largest message that a kubelet accepts",
                f"choose a unit above {dialect.least_unit}Mi for gpus.dialects before more GPUs come",
            )
        else:
            yield good(f"{told}, {full:.0%} of the largest message that a kubelet accepts")
    cost = report.cost
    told = f"a restart of a kubelet from 1.36 on looks {cost.devices} devices up among up to {cost.held} ids"
    if cost.is_dear:
        yield warn(
            f"{told}: for up to {cost.seconds:.0f} s no pod starts",
            "choose a coarser unit before you upgrade the kubelet; 'colocate gpu units' prints what units cost",
        )
    else:
        yield good(f"{told}: {_moment(cost)}")
    for gpu in report.gpus:
        name = f"GPU {gpu.uuid}"
        if gpu.mig:
            yield absent(f"{name} is in MIG mode and not shared")
        elif gpu.index is None:
            pods = ", ".join(share.pod for share in gpu.shares)
            yield warn(f"{name} is gone, and {pods} still has it", f"delete {pods} and create it again")
        elif not gpu.healthy:
            yield warn(
                f"{name} is unhealthy: {gpu.trouble}", "see 'colocate gpu status' and the kernel's log (NVRM)"
            )
        elif gpu.booked > gpu.memory:
            yield warn(
                f"{name} has {amount(gpu.memory << 20)}, but {amount(gpu.booked << 20)} are booked",
                "see 'colocate gpu status', and delete a pod",
            )
        else:
            yield good(f"{name} is healthy")
    for note in report.notes:
        yield warn(note, "see the agent's log")


def _moment(cost: DeviceCost) -> str:
    return f"at most {cost.seconds:.1f} s" if cost.seconds >= 0.1 else "not to be noticed"


class _Marks(msgspec.Struct, frozen=True):
    name: str = ""
    annotations: Mapping[str, str] = {}


class _Info(msgspec.Struct, frozen=True, rename="camel"):
    kubelet_version: str = ""


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    capacity: Mapping[str, str] = {}
    node_info: _Info = _Info()


class _GpuNode(msgspec.Struct, frozen=True):
    metadata: _Marks = _Marks()
    status: _Status = _Status()


@check(DoctorSection.CLUSTER, "gpu units")
async def gpu_units(patient: Patient) -> AsyncIterator[CheckResult]:
    """Every node can send its GPUs in one message to its kubelet, and all nodes use one unit."""
    units: dict[str, dict[Mebibytes, list[str]]] = {}
    nodes = 0
    for node in await patient.client.list(NODES.read_as(_GpuNode)):
        try:
            found = announced(node.metadata.annotations)
        except ValueError as error:
            yield warn(
                f"node {node.metadata.name}: {error}", "check that an agent of this release runs there"
            )
            continue
        if found is None:
            continue
        inventory = found.inventory
        nodes += 1
        served: list[Dialect] = []
        for dialect in DIALECTS.values():
            unit = found.units.get(dialect.memory) or _unit(inventory, _capacity(node, dialect))
            if unit is None:
                continue
            served.append(msgspec.structs.replace(dialect, unit=unit))
            units.setdefault(dialect.memory, {}).setdefault(unit, []).append(node.metadata.name)
            full = message_bytes(inventory.shared, unit) / MESSAGE_LIMIT
            if full > _ALMOST:
                yield warn(
                    f"node {node.metadata.name}: {dialect.memory} in units of {amount(unit << 20)} takes {full:.0%} "
                    "of the largest message that its kubelet accepts",
                    "choose a larger unit for gpus.dialects on every node of the cluster before more GPUs come",
                )
        cost = device_cost(inventory.shared, served)
        if cost.is_dear:
            version = kubelet_version(node.status.node_info.kubelet_version)
            new = version is None or version >= DEAR_FROM
            yield warn(
                f"node {node.metadata.name}: {cost.devices} devices of GPU memory keep "
                f"{'its kubelet' if new else 'a kubelet from 1.36 on'} busy for up to {cost.seconds:.0f} s at every "
                "restart, while no pod starts",
                "choose a larger unit for the whole cluster; 'colocate gpu units' prints what units cost and what "
                "manifests write then",
            )
    for resource, by_unit in units.items():
        if len(by_unit) > 1:
            told = "; ".join(
                f"{amount(unit << 20)} on {_some(names)}" for unit, names in sorted(by_unit.items())
            )
            yield warn(
                f"{resource} has several units in this cluster: {told}",
                "set one unit on every node: a pod does not say which it means",
            )
    if not nodes:
        yield absent("no node announces GPUs")
    elif all(len(by_unit) == 1 for by_unit in units.values()):
        yield good(f"{count(nodes, 'node')} with GPUs, one unit for each resource")


def _capacity(node: _GpuNode, dialect: Dialect) -> int:
    try:
        return quantity.whole(node.status.capacity.get(dialect.memory, "0"))
    except ValueError:
        return 0


def _unit(inventory: GpuInventory, devices: int) -> Mebibytes | None:
    """The unit in which these GPUs make that many devices, the roundest of several; None if there is none."""
    memory = [gpu.memory for gpu in inventory.shared]
    if devices <= 0 or devices > sum(memory):
        return None
    about = sum(memory) // devices
    fitting = [
        unit
        for unit in range(max(1, about - about // 8 - len(memory)), about + 2)
        if sum(each // unit for each in memory) == devices
    ]
    return max(fitting, key=lambda unit: unit & -unit, default=None)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


@check(DoctorSection.CLUSTER, "gpu requests")
async def gpu_requests(patient: Patient) -> AsyncIterator[CheckResult]:
    """Pending pods request GPUs in a way that some node can serve."""
    units = await _units(patient)
    dialects = [
        msgspec.structs.replace(each, unit=units.get(each.memory, each.unit)) for each in DIALECTS.values()
    ]
    pending = Selection(fields="status.phase=Pending,spec.nodeName=")
    wrong: list[tuple[str, str]] = []
    asking = 0
    for pod in await patient.client.list(PODS.read_as(GpuPod), pending):
        for dialect in dialects:
            asks = asks_of(pod, dialect)
            asking += bool(asks)
            if asks.problem:
                wrong.append((f"{pod.key} waits: {asks.problem}", "correct the pod, and create it again"))
            elif asks and (cost := counted_in_limits(pod, dialect)):
                wrong.append((f"{pod.key} waits: {cost}", "correct the pod, and create it again"))
    for sentence, remedy in wrong[:_SHOWN]:
        yield warn(visible(sentence), remedy)
    if len(wrong) > _SHOWN:
        yield warn(f"and {count(len(wrong) - _SHOWN, 'pod')} more", "'colocate gpu explain POD' explains one")
    if not wrong:
        yield good(f"{count(asking, 'pod')} with GPU requests waiting for a node, all readable")


async def _units(patient: Patient) -> Mapping[str, Mebibytes]:
    """The unit of each resource, from the first node that announces it."""
    units: dict[str, Mebibytes] = {}
    for node in await patient.client.list(NODES.read_as(_GpuNode)):
        try:
            found = announced(node.metadata.annotations)
        except ValueError:
            continue
        for resource, unit in found.units.items() if found is not None else ():
            units.setdefault(resource, unit)
    return units


@check(DoctorSection.CLUSTER, "gpu records")
async def gpu_records(patient: Patient) -> AsyncIterator[CheckResult]:
    """Annotations, checkpoint, podresources and driver agree on which pod has which GPU; no pod overrides its own."""
    path = patient.paths.checkpoint
    if not path.exists():
        yield absent("there is no checkpoint to compare")
        return
    reading = await asyncio.to_thread(lambda: parse(checkpoint_file.read(path).content).reading())
    try:
        listing = await listed_pods(patient.paths, patient.clock)
    except Unavailable:
        listing = None
    report = await ask_report(patient.control_socket)
    # The agent knows its node; the cluster may have another name for it than this machine.
    node = report.node if report is not None else patient.node
    try:
        findings = await gpu_findings(patient.client, node, reading, listing, report)
    except NotFound:
        yield absent(f"the cluster has no node {node}; set NODE_NAME to the node of this machine")
        return
    except ColocateError as error:
        yield warn(f"the API's pods could not be compared: {error}", "repair that, then run this again")
        return
    for found in findings:
        yield warn(f"{found.sentence} [{found.code}]", found.remedy)
    if not findings:
        yield good("all records agree on GPUs")
