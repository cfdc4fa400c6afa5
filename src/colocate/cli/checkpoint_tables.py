"""Prints a checkpoint: which pods hold what, what is registered, what was injected, and the findings."""

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, repeat

from colocate.cli.output import (
    aligned,
    fitted,
    has_colours,
    last_below,
    painted,
    terminal_width,
    visible,
    wrapped,
)
from colocate.devices.checkpoint.repair import RepairPlan
from colocate.devices.checkpoint.reports import ShownCheckpoint, ShownEntry
from colocate.devices.findings import Finding, Severity
from colocate.model.checkpoint import NO_TOPOLOGY
from colocate.model.device import Allocation

_WIDTH = 32
"""Columns for a list of ids that is shortened."""


_LONG = 22
"""Columns for one id or a run of ids in such a list."""

_COLOURS = {Severity.INFO: "90", Severity.WARNING: "33", Severity.ERROR: "31"}
_MARKS = {Severity.INFO: "·", Severity.WARNING: "!", Severity.ERROR: "✗"}

_NUMBERED = re.compile(r"(.*?)(\d{1,15})", re.DOTALL)


def table(shown: ShownCheckpoint, wide: bool, width: int = 0) -> Iterator[str]:
    """The whole checkpoint, within the width if given; `wide` shows every id and everything injected."""
    yield from wrapped(visible(f"{shown.file}: {_checksum(shown)}"), width, hanging="  ")
    yield ""
    if not shown.entries:
        yield "no container holds a device"
    elif wide:
        yield from chain.from_iterable(_in_full(entry, width) for entry in shown.entries)
    else:
        yield from _by_pod(shown.entries, width)
    yield ""
    held = _held(shown)
    rows = [
        (resource, str(len(ids or ())), str(len(held.get(resource, ()))), _ids(ids or (), wide))
        for resource, ids in sorted(shown.registered.items())
    ]
    if rows:
        table = [("REGISTERED", "DEVICES", "HELD", "IDS"), *rows]
        # Ids may continue below; if even the other columns do not fit, each resource has lines of its own.
        rest = max(map(len, aligned([row[:-1] for row in table])))
        yield from fitted(table, width) if width and rest > width else last_below(table, width)
    else:
        yield "no plugin has registered a resource"


def _by_pod(entries: Sequence[ShownEntry], width: int) -> Iterator[str]:
    heads = ("CONTAINER", "RESOURCE", "NUMA", "DEVICES", "INJECTED")
    head, *lines = aligned([heads, *map(_row, entries)], gap=2)
    if width and max(map(len, (head, *lines))) + 2 > width:
        yield from _one_below_the_other(entries, width)
        return
    pods: dict[str, list[str]] = {}
    for entry, line in zip(entries, lines, strict=True):
        pods.setdefault(_pod(entry), []).append(line)
    yield "POD"
    yield f"  {head}"
    for pod, of_pod in pods.items():
        yield visible(pod)
        yield from (f"  {line}" for line in of_pod)


def _one_below_the_other(entries: Sequence[ShownEntry], width: int) -> Iterator[str]:
    """Several lines for each row, for a narrow terminal."""
    pod = ""
    for entry in entries:
        if _pod(entry) != pod:
            pod = _pod(entry)
            yield from wrapped(visible(pod), width, hanging="  ")
        container, resource, nodes, devices, injected = map(visible, _row(entry))
        yield f"  {container}"
        numa = "" if nodes == "-" else f", NUMA {nodes}"
        yield from wrapped(f"{resource}{numa}, {devices}", width, "    ", "      ")
        yield from wrapped(f"injected {injected}", width, "    ", "      ")


def _pod(entry: ShownEntry) -> str:
    return f"{entry.pod}  ({entry.pod_uid})" if entry.pod else entry.pod_uid


def _checksum(shown: ShownCheckpoint) -> str:
    age = f"format of kubelet {shown.format.value}"
    if shown.checksum is None:
        return f"{age}, which has no checksum"
    if shown.checksum.right:
        return f"{age}, checksum {shown.checksum.computed} is right"
    return f"{age}, checksum {shown.checksum.stated} is wrong: {shown.checksum.computed} would be right"


def _held(shown: ShownCheckpoint) -> dict[str, set[str]]:
    held: dict[str, set[str]] = {}
    for entry in shown.entries:
        held.setdefault(entry.resource, set()).update(chain.from_iterable(entry.devices.values()))
    return held


def _row(entry: ShownEntry) -> Sequence[str]:
    ids = set(chain.from_iterable(entry.devices.values()))
    nodes = ",".join(str(node) for node in sorted(entry.devices) if node != NO_TOPOLOGY)
    return (
        entry.container,
        entry.resource,
        nodes or "-",
        f"{len(ids)}: {_ids(ids, wide=False)}" if ids else "none",
        _summary(entry.injected),
    )


def _summary(injected: Allocation | None) -> str:
    if injected is None:
        return "unreadable"
    counts = {
        "env": len(injected.envs),
        "mount": len(injected.mounts),
        "device": len(injected.devices),
        "annotation": len(injected.annotations),
        "CDI name": len(injected.cdi),
    }
    parts = [f"{count} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items() if count]
    return ", ".join(parts) or "nothing"


def _in_full(entry: ShownEntry, width: int) -> Iterator[str]:
    told = visible(f"{_pod(entry)}  container {entry.container}  {entry.resource}")
    yield from wrapped(told, width, hanging="    ")
    rows: list[tuple[str, str]] = []
    for node, ids in sorted(entry.devices.items()):
        where = "no NUMA node" if node == NO_TOPOLOGY else f"NUMA node {node}"
        rows += zip(chain((where,), repeat("")), ids, strict=False)
    rows += _injected(entry.injected)
    yield from (f"  {line}" for line in last_below(rows, width - 2 if width else 0))


def _injected(injected: Allocation | None) -> Iterator[tuple[str, str]]:
    if injected is None:
        yield "injected", "unreadable"
        return
    for name, value in injected.envs.items():
        yield "env", f"{name}={value}"
    for mount in injected.mounts:
        yield (
            "mount",
            f"{mount.host_path} → {mount.container_path}{' (read-only)' if mount.read_only else ''}",
        )
    for device in injected.devices:
        yield "device", f"{device.host_path} → {device.container_path} ({device.permissions})"
    for name, value in injected.annotations.items():
        yield "annotation", f"{name}={value}"
    for name in injected.cdi:
        yield "CDI", name


# Ids -------------------------------------------------------------------------------------------------


def _ids(ids: Collection[str], wide: bool) -> str:
    """All ids; or, shortened, runs of numbered ids by their ends, and as many as fit."""
    if wide:
        return ", ".join(sorted(ids, key=_natural))
    text = ""
    for run in _runs(ids):
        if text and len(text) + len(run) > _WIDTH:
            return f"{text}, …"
        text = f"{text}, {run}" if text else run
    return text


def _natural(id: str) -> tuple[str, int, str]:
    """The order of ids: by the text before the last number, then by that number, so that a-2 is before a-10."""
    numbered = _NUMBERED.fullmatch(id)
    return (numbered[1], int(numbered[2]), id) if numbered else (id, -1, id)


def _runs(ids: Collection[str]) -> Iterator[str]:
    """`a-1–3` for a-1, a-2, a-3. Ids with leading zeros form runs only with ids of the same length."""
    first = last = None
    for id in sorted(ids, key=_natural):
        if first is not None and last is not None and _follows(last, id):
            last = id
            continue
        if first is not None and last is not None:
            yield _run(first, last)
        first = last = id
    if first is not None and last is not None:
        yield _run(first, last)


def _follows(one: str, other: str) -> bool:
    before, after = _natural(one), _natural(other)
    zeros = before[1] >= 0 and one[len(before[0]) :].startswith("0") and len(one) != len(other)
    return before[0] == after[0] and before[1] >= 0 and after[1] == before[1] + 1 and not zeros


def _run(first: str, last: str) -> str:
    prefix = _natural(last)[0] if first != last else ""
    run = first if first == last else f"{first}–{last[len(prefix) :]}"
    # Cut the middle of a long id: its beginning has the kind, its end the share.
    return run if len(run) <= _LONG else f"{run[:12]}…{run[12 - _LONG + 1 :]}"


# A change --------------------------------------------------------------------------------------------


def change(plan: RepairPlan) -> Iterator[str]:
    """The changes, line by line."""
    for entry in plan.mended.dropped:
        yield visible(
            f"- pod {entry.pod_uid}  container {entry.container}  {entry.resource}: "
            f"{_ids(entry.ids, wide=True)}"
        )
    for resource in plan.mended.unregistered:
        yield visible(f"- registered resource {resource}")
    for path in plan.unknown:
        yield visible(f"- {path}, which no kubelet reads")
    if plan.stated != plan.right:
        yield f"- checksum {'none' if plan.stated is None else plan.stated}"
        yield f"+ checksum {plan.right}"


def found(findings: Sequence[Finding]) -> Iterator[str]:
    """A finding and, below it, the remedy; on a terminal in colour and within its width."""
    width, colours = terminal_width(), has_colours()
    for finding in findings:
        mark = _MARKS[finding.severity]
        told = wrapped(visible(f"{mark} {finding.code}: {finding.sentence}"), width, hanging="  ")
        yield painted(told[0], mark, _COLOURS[finding.severity]) if colours else told[0]
        yield from told[1:]
        yield from wrapped(visible(f"→ {finding.remedy}"), width, "  ", "    ")
