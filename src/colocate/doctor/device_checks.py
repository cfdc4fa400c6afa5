"""The kubelet's checkpoint, alone and against other records, and extended resources without a provider."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from colocate.cluster.client import Client
from colocate.cluster.connection import Connection
from colocate.devices import checkpoint_check
from colocate.devices.checkpoint import file as checkpoint_file
from colocate.devices.checkpoint.sources import ClusterRecords, ask_everything
from colocate.devices.comparison import compare
from colocate.devices.extended_resources import ExtendedResource, ResourceState
from colocate.devices.findings import Finding, Severity, counted
from colocate.devices.resources.local_kubelet import LocalKubelet
from colocate.devices.resources.observe import ResourceObserver
from colocate.doctor.check import DoctorSection, Patient, check
from colocate.doctor.report import CheckResult, CheckVerdict, absent, good, warn
from colocate.errors import Unavailable, UserError
from colocate.gpus import WRITTEN_BESIDE
from colocate.host.identity import this_machine
from colocate.kubelet.checkpoint import parse
from colocate.memory.agent.control import REPORT, AskReport
from colocate.model.checkpoint import Reading
from colocate.model.records import Records
from colocate.wire import control_socket as control

_SHOWN = 5
_VERDICTS = {Severity.WARNING: CheckVerdict.WARN, Severity.ERROR: CheckVerdict.BAD}


@check(DoctorSection.KUBELET, "checkpoint")
async def checkpoint(patient: Patient) -> AsyncIterator[CheckResult]:
    """The kubelet's checkpoint is sound, as `colocate checkpoint verify` sees it."""
    path = patient.paths.checkpoint
    if not path.exists():
        yield good(f"{path} does not exist: no device plugin has ever registered with this kubelet")
        return
    reading, findings = await asyncio.to_thread(_verified, path)
    for result in _results(findings, "colocate checkpoint verify"):
        yield result
    if not findings:
        entries = counted(len(reading.checkpoint.entries or ()), "container")
        yield good(f"it is sound: {entries} with devices, checksum {reading.computed}")


def _verified(path: Path) -> tuple[Reading, list[Finding]]:
    """Run in a thread: a large checkpoint takes seconds."""
    reading = parse(checkpoint_file.read(path).content).reading()
    return reading, checkpoint_check.check(reading)


@check(DoctorSection.KUBELET, "records")
async def records(patient: Patient) -> AsyncIterator[CheckResult]:
    """The checkpoint agrees with podresources and the API, as `colocate checkpoint diff` sees it."""
    path = patient.paths.checkpoint
    if not path.exists():
        yield good("there is no checkpoint to compare")
        return
    found = (await asyncio.to_thread(lambda: parse(checkpoint_file.read(path).content))).checkpoint
    cluster = ClusterRecords(lambda: _connection(patient), node=patient.node)
    asked = await ask_everything(patient.paths, cluster, patient.clock)
    if asked.records == Records():
        silent = "; ".join(asked.silent)
        yield warn(f"nothing could be compared: {silent}", "repair one of these, then run this again")
        return
    findings = await asyncio.to_thread(compare, found, asked.records)
    for result in _results(findings, "colocate checkpoint diff"):
        yield result
    if not findings:
        left_out = f"; not asked: {'; '.join(asked.silent)}" if asked.silent else ""
        yield good(f"the checkpoint agrees with the other records{left_out}")


def _connection(patient: Patient) -> Connection:
    if isinstance(patient.cluster, Client):
        return patient.cluster.connection
    raise UserError(patient.cluster)


def _results(findings: Sequence[Finding], command: str) -> Iterator[CheckResult]:
    """The most serious findings, and how many more there are."""
    wrong = sorted(
        (one for one in findings if one.severity is not Severity.INFO),
        key=lambda one: _VERDICTS[one.severity],
        reverse=True,
    )
    for one in wrong[:_SHOWN]:
        yield CheckResult(_VERDICTS[one.severity], f"{one.sentence} [{one.code}]", one.remedy)
    if more := wrong[_SHOWN:]:
        yield CheckResult(
            _VERDICTS[more[0].severity],
            f"and {counted(len(more), 'finding')} more",
            f"see all with {command}",
        )
    if known := len(findings) - len(wrong):
        yield good(f"{counted(known, 'finding')} worth knowing, but nothing is wrong; {command} shows more")


@check(DoctorSection.CLUSTER, "extended resources")
async def extended_resources(patient: Patient) -> AsyncIterator[CheckResult]:
    """Every extended resource of every node has a provider, as `colocate resource list` sees it."""
    kubelet = LocalKubelet(patient.paths, this_machine(), patient.clock, node=patient.node)
    observer = ResourceObserver(patient.client, kubelet, patient.clock, WRITTEN_BESIDE)
    looks = await observer.all_nodes()
    switched_off = await _switched_off(patient)
    states: Counter[ResourceState] = Counter()
    for resource in (one for look in looks for one in look.resources):
        if (resource.node, resource.name) == switched_off:
            yield absent(
                f"{resource.name} on {resource.node}: memory is switched off; 'colocate memory on' offers it again"
            )
            continue
        states[resource.state] += 1
        if result := _complaint(resource):
            yield result
    well = sum(
        states[state]
        for state in (
            ResourceState.ALIVE,
            ResourceState.HAND_PATCHED,
            ResourceState.UNKNOWN,
            ResourceState.LEAVING,
        )
    )
    if well or not states:
        yield good(f"{well} of {states.total()} on {counted(len(looks), 'node')} have a provider")


async def _switched_off(patient: Patient) -> tuple[str, str] | None:
    """The node and the resource of an agent here whose memory is switched off; None if there is none."""
    try:
        report = await control.ask(patient.control_socket, REPORT, AskReport())
    except (UserError, Unavailable):
        return None
    return (report.node, report.resource) if report.off else None


def _complaint(resource: ExtendedResource) -> CheckResult | None:
    what = f"{resource.name} on {resource.node}: {resource.reason}"
    if resource.is_stale:
        held = f"; {counted(len(resource.holders), 'pod')} still request it" if resource.holders else ""
        return warn(
            f"{what}{held}",
            f"start its plugin again, or remove it: colocate resource remove {resource.node} {resource.name}",
        )
    if resource.state is ResourceState.UNHEALTHY:
        return warn(what, "read the log of its plugin")
    return None
