"""Devices: the kubelet's checkpoint by itself and against other records, and resources that nobody stands behind."""

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator

from colocate.apps.checkpoint import file as checkpoint_file
from colocate.apps.checkpoint.sources import Cluster, ask_everything
from colocate.apps.doctor.check import Patient, Section, check
from colocate.apps.doctor.report import Result, Verdict, good, warn
from colocate.apps.resources.local_kubelet import LocalKubelet
from colocate.apps.resources.observe import Observer
from colocate.cluster.client import Client
from colocate.cluster.connection import Connection
from colocate.devices import checkpoint_check
from colocate.devices.comparison import compare
from colocate.devices.extended_resources import ExtendedResource, State
from colocate.devices.findings import Finding, Severity, counted
from colocate.errors import UserError
from colocate.host.identity import this_machine
from colocate.kubelet.checkpoint import parse
from colocate.model.checkpoint import Checkpoint
from colocate.model.records import Records

_VERDICTS = {Severity.INFO: Verdict.GOOD, Severity.WARNING: Verdict.WARN, Severity.ERROR: Verdict.BAD}


@check(Section.KUBELET, "checkpoint")
async def checkpoint(patient: Patient) -> AsyncIterator[Result]:
    """The kubelet's record of who holds which device is sound, as `colocate checkpoint verify` sees it."""
    path = patient.paths.checkpoint
    if not path.exists():
        yield good(f"there is no {path}: this kubelet has never met a device plugin")
        return
    reading = parse(checkpoint_file.read(path).content).reading()
    findings = checkpoint_check.check(reading)
    for result in _results(findings):
        yield result
    if not findings:
        entries = counted(len(reading.checkpoint.entries or ()), "container")
        yield good(f"it is sound: {entries} with devices, checksum {reading.computed}")


@check(Section.KUBELET, "records")
async def records(patient: Patient) -> AsyncIterator[Result]:
    """The checkpoint agrees with podresources and the API, as `colocate checkpoint diff` sees it."""
    path = patient.paths.checkpoint
    if not path.exists():
        yield good("there is no checkpoint to compare")
        return
    found = parse(checkpoint_file.read(path).content).checkpoint
    async for result in _compared(found, patient):
        yield result


async def _compared(found: Checkpoint, patient: Patient) -> AsyncIterator[Result]:
    asked = await ask_everything(
        patient.paths, Cluster(lambda: _connection(patient), node=patient.node), patient.clock
    )
    if asked.records == Records():
        yield warn(
            f"nothing could be compared: {'; '.join(asked.silent)}", "mend one of these, then ask again"
        )
        return
    findings = compare(found, asked.records)
    for result in _results(findings):
        yield result
    if not findings:
        left_out = f"; not asked: {'; '.join(asked.silent)}" if asked.silent else ""
        yield good(f"the checkpoint agrees with the other records{left_out}")


def _connection(patient: Patient) -> Connection:
    if isinstance(patient.cluster, Client):
        return patient.cluster.connection
    raise UserError(patient.cluster)


def _results(findings: Iterable[Finding]) -> Iterator[Result]:
    for one in findings:
        verdict = _VERDICTS[one.severity]
        yield Result(verdict, f"{one.sentence} [{one.code}]", "" if verdict is Verdict.GOOD else one.remedy)


@check(Section.CLUSTER, "extended resources")
async def extended_resources(patient: Patient) -> AsyncIterator[Result]:
    """Every extended resource of every node has somebody behind it, as `colocate resource list` sees it."""
    observer = Observer(
        patient.client, LocalKubelet(patient.paths, this_machine(), patient.clock), patient.clock
    )
    looks = await observer.all_nodes()
    states: Counter[State] = Counter()
    for resource in (one for look in looks for one in look.resources):
        states[resource.state] += 1
        if result := _complaint(resource):
            yield result
    well = sum(states[state] for state in (State.ALIVE, State.HAND_PATCHED, State.UNKNOWN, State.LEAVING))
    if well or not states:
        yield good(f"{well} of {states.total()} on {counted(len(looks), 'node')} have somebody behind them")


def _complaint(resource: ExtendedResource) -> Result | None:
    what = f"{resource.name} on {resource.node}: {resource.reason}"
    if resource.is_stale:
        held = f"; {counted(len(resource.holders), 'pod')} still ask for it" if resource.holders else ""
        return warn(
            f"{what}{held}",
            f"start its plugin again, or take it away: colocate resource remove {resource.node} {resource.name}",
        )
    if resource.state is State.UNHEALTHY:
        return warn(what, "look at the log of its plugin")
    return None
