"""Differences between a node's records about GPUs, found outside the agent: for `checkpoint diff` and the doctor."""

from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from colocate.cluster.client import Client
from colocate.cluster.resources import NODES, PODS, unfinished_on
from colocate.devices.findings import Code, Finding, Severity
from colocate.errors import Unavailable, UserError
from colocate.gpus import (
    DIALECTS,
    AnswerKey,
    GpuAnnouncement,
    GpuDisagreement,
    GpuHolding,
    GpuPod,
    GpuRecords,
    GpuSettings,
    announced,
    disagreements,
    overriding,
)
from colocate.gpus.agent.control import GPU_REPORT, AskGpuReport
from colocate.gpus.agent.report import GpuReport
from colocate.model.checkpoint import Reading
from colocate.model.gpu import Gpu, GpuInventory
from colocate.model.records import ListedPod
from colocate.wire import control_socket as control

_SETTINGS = GpuSettings(dialects=tuple(DIALECTS.values()))
"""Every dialect, because it is not known here which of them the node's agent serves."""
_MARKED = (
    "'colocate gpu status' shows which GPUs are unhealthy; the agent also marks what pods have in another dialect or "
    "of a second GPU"
)


class _NodeMarks(msgspec.Struct, frozen=True):
    annotations: Mapping[str, str] = {}


class _AnnouncingNode(msgspec.Struct, frozen=True):
    metadata: _NodeMarks = _NodeMarks()


async def ask_report(socket: Path) -> GpuReport | None:
    """What the agent of this machine reports about its GPUs; None without an agent, or if it shares none."""
    try:
        return await control.ask(socket, GPU_REPORT, AskGpuReport())
    except (UserError, Unavailable):
        return None


async def gpu_findings(
    client: Client, node: str, reading: Reading, listing: Sequence[ListedPod] | None, report: GpuReport | None
) -> list[Finding]:
    """Differences between records about GPUs, compared with the API's pods."""
    holdings = gpu_holdings(reading)
    pods = {pod.uid: pod for pod in await client.list(PODS.read_as(GpuPod), unfinished_on(node))}
    inventory = _reported(report) if report is not None else await _announced(client, node)
    found = disagreements(
        GpuRecords(pods, holdings),
        inventory,
        _SETTINGS,
        listed=None if listing is None else _listed(listing),
        running=None if report is None else {uid: set(gpus) for uid, gpus in report.running.items()},
    )
    findings = [_finding(Code.GPU_DISAGREES, each) for each in found]
    if holdings or inventory.gpus:
        findings += [
            _finding(Code.GPU_OVERRIDDEN, each) for each in overriding(pods.values(), _SETTINGS.dialects)
        ]
    return findings


def without_intended(findings: Iterable[Finding], registered: Container[str]) -> list[Finding]:
    """The findings without what a GPU agent does on purpose: counts that no plugin registers, slices that it marks.

    `registered` are the resources of plugins. Removing such a count would not help: the agent writes it again.
    """
    dialects = [dialect for dialect in DIALECTS.values() if dialect.memory in registered]
    counts = {name for dialect in dialects for name in (dialect.count, dialect.cores)}
    memory = {dialect.memory for dialect in dialects}
    return [
        msgspec.structs.replace(each, remedy=_MARKED)
        if each.code is Code.UNHEALTHY_DEVICES and each.subject in memory
        else each
        for each in findings
        if each.code is not Code.NOT_OF_A_PLUGIN or each.subject not in counts
    ]


def gpu_holdings(reading: Reading) -> tuple[GpuHolding, ...]:
    """The GPU memory that containers hold, from the checkpoint."""
    entries = zip(reading.checkpoint.entries or (), reading.injected, strict=True)
    return tuple(
        GpuHolding(
            key=AnswerKey(entry.pod_uid, entry.resource, entry.container), ids=entry.ids, injected=injected
        )
        for entry, injected in entries
        if _SETTINGS.dialect_of(entry.resource) is not None
    )


def _listed(listing: Sequence[ListedPod]) -> Mapping[tuple[str, str, str], frozenset[str]]:
    return {
        (pod.key, container, resource): ids
        for pod in listing
        for container, resources in pod.containers.items()
        for resource, ids in resources.items()
    }


def _reported(report: GpuReport) -> GpuInventory:
    return GpuInventory(
        tuple(
            Gpu(uuid=gpu.uuid, index=gpu.index, memory=gpu.memory, model=gpu.model, mig=gpu.mig)
            for gpu in report.gpus
            if gpu.index is not None
        )
    )


async def _announced(client: Client, node: str) -> GpuInventory:
    found = await client.get(NODES.read_as(_AnnouncingNode), node)
    try:
        return (announced(found.metadata.annotations) or GpuAnnouncement()).inventory
    except ValueError:
        return GpuInventory()


def _finding(code: Code, found: GpuDisagreement) -> Finding:
    return Finding(code, Severity.WARNING, found.uid, found.sentence, found.remedy)
