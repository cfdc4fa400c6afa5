"""Prints the status of a node's memory: a bar, its figures, and the pods with blocks."""

from collections.abc import Iterator

from colocate.cli.output import fitted, last_below, visible, wrapped
from colocate.memory.agent.report import MemoryReport, PodReport, evictor_binding
from colocate.model.figures import amount
from colocate.model.memory import Bytes

WIDTH = 60
_MARKS = {
    "system": ("#", "90"),
    "online": ("O", "34"),
    "colocated": ("C", "32"),
    "debt": ("!", "31"),
    "published": ("p", "36"),
    "idle": (".", "37"),
    "safety": ("s", "33"),
}
_MEANING = {
    "system": "used outside pods",
    "online": "expected for online pods and the rest",
    "colocated": "held by colocated pods",
    "debt": "held by colocated pods, taken from the safety",
    "published": "offered as free blocks",
    "idle": "less than a block, or waiting for the cool-down",
    "safety": "never sold",
}


def status_lines(report: MemoryReport, *, colours: bool, width: int = 0) -> Iterator[str]:
    """Everything, line by line."""
    state = (
        " (switched off)"
        if report.off
        else " (dry run: nothing is offered or changed)"
        if report.dry_run
        else ""
    )
    sold = f"{amount(report.bar.capacity)} of memory, offered as {report.resource}"
    yield from wrapped(visible(f"{report.node}: {sold}{state}"), width, hanging="  ")
    cells = min(WIDTH, width - 2) if width else WIDTH
    yield f"[{drawn(report.bar.parts(), colours, max(len(_MARKS), cells))}]"
    yield from _legend(report, colours, width)
    blocks = f"{report.offered} free, {report.held} held ({report.withdrawn} being taken back)"
    if report.returning:
        blocks += f"; {report.returning} more in {report.returning_in:.0f} s (cool-down)"
    yield from wrapped(f"blocks of {amount(report.block_size)}: {blocks}", width, hanging="  ")
    if report.unstored:
        why = f"the agent cannot store its state ({report.unstored}), so it offers no block until it can"
        yield from wrapped(why, width, hanging="  ")
    if report.switch_unstored:
        why = (
            f"a restart of the agent undoes the switch: the agent cannot store it ({report.switch_unstored})"
        )
        yield from wrapped(why, width, hanging="  ")
    if report.debt:
        yield f"debt: {amount(report.debt)}, of which online work needs {amount(report.due)} now"
    if report.rung:
        yield f"the ladder is on rung {report.rung}"
    if report.pods:
        yield ""
        rows = [["POD", "BLOCKS", "USED", "LIMIT", "DONE"], *(_row(pod) for pod in report.pods)]
        yield from fitted(rows, width)
    if report.without_eviction:
        named = ", ".join(report.without_eviction)
        remedy = evictor_binding(
            report.without_eviction[0] if len(report.without_eviction) == 1 else "NAMESPACE"
        )
        told = f"the agent may not evict pods in: {named}; to allow it: {remedy}"
        yield from wrapped(told, width, hanging="  ")
    for why in report.silent:
        yield from wrapped(visible(f"note: {why}"), width, hanging="  ")


def _legend(report: MemoryReport, colours: bool, width: int) -> Iterator[str]:
    shown = [(name, size) for name, size in report.bar.parts() if size or name in ("colocated", "published")]
    meaning = {**_MEANING, **({"idle": "not offered while it is switched off"} if report.off else {})}
    rows = [[f"{_MARKS[name][0]} {name}", amount(size), meaning[name]] for name, size in shown]
    marks = {_MARKS[name][0]: name for name, _ in shown}
    for line in last_below(rows, width and width - 2):
        yield f"  {_painted(line[0], marks[line[0]], colours)}{line[1:]}" if line[0] != " " else f"  {line}"


def drawn(parts: tuple[tuple[str, Bytes], ...], colours: bool, width: int = WIDTH) -> str:
    """The parts side by side; every part gets at least one cell."""
    whole = sum(size for _, size in parts) or 1
    cells = {name: max(1, round(size / whole * width)) if size else 0 for name, size in parts}
    while (excess := sum(cells.values()) - width) != 0:
        widest = max(cells, key=lambda name: cells[name])
        cells[widest] -= 1 if excess > 0 else -1
    return "".join(_painted(_MARKS[name][0] * cells[name], name, colours) for name, _ in parts)


def _painted(text: str, name: str, colours: bool) -> str:
    return f"\x1b[{_MARKS[name][1]}m{'█' * len(text)}\x1b[0m" if colours and text else text


def _row(pod: PodReport) -> list[str]:
    limit = "none" if pod.limit is None else amount(pod.limit)
    return [pod.pod, str(len(pod.blocks)), amount(pod.used), limit, ", ".join(pod.done)]
