"""Prints the GPUs of a node: a bar for each, its figures, and the pods on it."""

from collections.abc import Iterator

from colocate.cli.output import fitted, visible, wrapped
from colocate.gpus.agent.report import GpuReport, GpuShare, GpuStatus
from colocate.kubelet import MESSAGE_LIMIT
from colocate.model.figures import amount, count

WIDTH = 40
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_COLOURS = ("32", "34", "35", "36", "33", "31")
_ALMOST = 0.8
"""Fraction of a message from which on it is shown."""


def gpu_lines(report: GpuReport, *, colours: bool, width: int = 0) -> Iterator[str]:
    """Everything, line by line."""
    mock = " (mock GPUs)" if report.mock else ""
    yield visible(f"{report.node}: {count(len(report.gpus), 'GPU')}{mock}")
    for dialect in report.dialects:
        unit = amount(dialect.unit << 20)
        full = dialect.message / MESSAGE_LIMIT
        near = f", {full:.0%} of what a kubelet takes" if full > _ALMOST else ""
        drains = ", draining: nothing new is offered" if dialect.drains else ""
        told = visible(f"{dialect.resource}: {dialect.devices} devices of {unit}{near}{drains}")
        yield from wrapped(told, width, indent="  ", hanging="    ")
    for gpu in report.gpus:
        yield ""
        yield from _gpu(gpu, colours, width)
    for each in report.mismatches:
        yield from wrapped(visible(f"{each.source} disagrees: {each.sentence}"), width, hanging="  ")
    for note in report.notes:
        yield from wrapped(visible(f"note: {note}"), width, hanging="  ")


def _gpu(gpu: GpuStatus, colours: bool, width: int) -> Iterator[str]:
    place = "gone" if gpu.index is None else f"GPU {gpu.index}"
    near = "" if gpu.numa is None else f", NUMA node {gpu.numa}"
    model = f" {gpu.model}," if gpu.model else ""
    titled = visible(f"{place}:{model} {amount(gpu.memory << 20)}{near}, {gpu.uuid}")
    yield from wrapped(titled, width, hanging="  ")
    if gpu.mig:
        yield "  in MIG mode: left out"
        return
    if gpu.trouble:
        soon = (
            f"; healthy again in {gpu.recovers_in:.0f} s if nothing else happens" if gpu.recovers_in else ""
        )
        yield from wrapped(visible(f"unhealthy: {gpu.trouble}{soon}"), width, indent="  ", hanging="    ")
    if gpu.memory:
        yield f"  [{drawn(gpu, colours, max(1, min(WIDTH, width - 4)) if width else WIDTH)}]"
    used = "" if gpu.used is None else f"; {amount(gpu.used)} in use"
    free = max(0, gpu.memory - gpu.booked)
    booked = f"{amount(gpu.booked << 20)} and {gpu.booked_cores} of 100 cores booked"
    yield from wrapped(f"{booked}, {amount(free << 20)} free{used}", width, indent="  ", hanging="    ")
    if gpu.shares:
        rows = [["   POD", "CONTAINERS", "MEMORY", "CORES", "IN USE"]]
        rows += [_row(place, share) for place, share in enumerate(gpu.shares)]
        yield from (f"  {line}" for line in fitted(rows, width and width - 2, gap=2))


def drawn(gpu: GpuStatus, colours: bool, width: int = WIDTH) -> str:
    """The shares side by side, each with its letter; every share gets at least one cell."""
    cells: list[str] = []
    for place, share in enumerate(gpu.shares):
        wide = max(1, round(share.memory / gpu.memory * width)) if share.memory else 0
        text = _LETTERS[place % len(_LETTERS)] * wide
        colour = _COLOURS[place % len(_COLOURS)]
        cells += [f"\x1b[{colour}m{letter}\x1b[0m" if colours else letter for letter in text]
    # Overbooked: the figures show what does not fit.
    return "".join(cells[:width]) + "." * (width - len(cells))


def _row(place: int, share: GpuShare) -> list[str]:
    used = "?" if share.used is None else amount(share.used)
    letter = _LETTERS[place % len(_LETTERS)]
    names = ", ".join(share.containers)
    return [f"{letter}  {share.pod}", names, amount(share.memory << 20), str(share.cores or "-"), used]
