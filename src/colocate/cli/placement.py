"""`colocate cpus status`, `explain CONTAINER`, `off` and `on`: ask the placer of this node, and its switch."""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from colocate.cli.commands import Commands, add_command, add_output, seconds
from colocate.cli.cpu_picture import FREE, ISOLATED, RESERVED, TAKEN, legend, picture
from colocate.cli.output import aligned, as_json, has_colours, terminal_width, visible, wrapped
from colocate.cpus import CpuMode, PoolTree
from colocate.cpus.placer.part import made_machine
from colocate.cpus.placer.report import (
    EXPLAIN,
    PLACER,
    STATUS,
    SWITCH,
    AskExplanation,
    AskPlacement,
    ContainerReport,
    PlacementReport,
    PlacementSwitched,
    SwitchPlacement,
)
from colocate.cpus.placer.section import DEFAULT_CPUS_SOCKET
from colocate.host.cpu_topology import read_topology
from colocate.model.cpuset import CpuSet
from colocate.model.figures import count, some
from colocate.wire import control_socket as control

_LOOK_AGAIN = 0.5
_SHARED = "a"


def add(commands: Commands) -> None:
    """Add the commands that ask a running placer."""
    status = add_command(commands, "status", "which container of this node has which CPUs, and what is free")
    add_socket(status)
    add_output(status, "text", "json")
    status.set_defaults(run=show_status)
    off = add_command(commands, "off", "give every container all CPUs again, until switched on again")
    add_socket(off)
    off.add_argument(
        "--timeout",
        default="2m",
        metavar="SPAN",
        help="how long to wait until everything is restored (2m); 0: do not wait",
    )
    off.set_defaults(run=switch_off)
    on = add_command(commands, "on", "place containers again")
    add_socket(on)
    on.set_defaults(run=switch_on)


def add_socket(command: argparse.ArgumentParser) -> None:
    """Add the flag for the placer's socket."""
    command.add_argument(
        "--socket",
        metavar="PATH",
        type=Path,
        default=Path(os.environ.get(PLACER.variable) or DEFAULT_CPUS_SOCKET),
        help=f"the placer's socket; else {PLACER.variable}, else {DEFAULT_CPUS_SOCKET}",
    )


def show_status(args: argparse.Namespace) -> int:
    report = _ask(args.socket)
    if args.output == "json":
        print(as_json(report))
    else:
        print(*status_lines(report, width=terminal_width(), colours=has_colours()), sep="\n")
    return 0


def show_container(args: argparse.Namespace) -> int:
    """Explain why a container has its CPUs."""
    found = asyncio.run(control.ask(args.socket, EXPLAIN, AskExplanation(args.container), PLACER))
    if args.output == "json":
        print(as_json(found))
        return 0
    sentences = list(found.sentences)
    if found.actual and found.container.cpus and found.actual != found.container.cpus:
        sentences.append(f"Its control group has {found.actual} now; the next audit corrects that.")
    for sentence in sentences:
        print(*wrapped(visible(sentence), terminal_width(), hanging="  "), sep="\n")
    return 0


def switch_off(args: argparse.Namespace) -> int:
    patience = seconds(args.timeout, "--timeout")
    switched = asyncio.run(control.ask(args.socket, SWITCH, SwitchPlacement(off=True), PLACER))
    print("placement was off already" if switched.was_off else "placement is switched off")
    _tell_unstored(switched)
    end = time.monotonic() + patience
    while True:
        report = _ask(args.socket)
        if not report.unpinned:
            print("everything is restored: every container may run on all CPUs")
            return 0
        if time.monotonic() >= end:
            print(f"{count(report.unpinned, 'container')} not restored yet; 'colocate cpus status' tells")
            return 1 if patience else 0
        time.sleep(_LOOK_AGAIN)


def switch_on(args: argparse.Namespace) -> int:
    switched = asyncio.run(control.ask(args.socket, SWITCH, SwitchPlacement(off=False), PLACER))
    print("placement is switched on" if switched.was_off else "placement was on already")
    _tell_unstored(switched)
    return 0


def status_lines(report: PlacementReport, *, width: int = 0, colours: bool = False) -> Iterator[str]:
    """Everything, line by line."""
    if report.blind:
        yield from wrapped(
            visible(f"No container is placed, because the CPU topology cannot be read: {report.blind}"),
            width,
        )
        yield "The placer tries again at least once a minute; containers start meanwhile, on all CPUs."
        return
    made = made_machine(report.topology)
    tree = PoolTree(made or read_topology())
    yield from picture(tree, _marks(report), width=width, colours=colours)
    yield ""
    yield legend([(FREE, "free"), (TAKEN, "exclusive"), (_SHARED, "shared"), (RESERVED, "reserved")], colours)
    if report.containers:
        yield ""
        rows = [["CONTAINER", "CPUS", "ON", "MEMORY"], *(_row(each) for each in report.containers)]
        for line in aligned(rows):
            yield from wrapped(visible(line), width, hanging="    ")
    yield ""
    for sentence in _notes(report):
        yield from wrapped(visible(sentence), width, hanging="  ")


def _notes(report: PlacementReport) -> Iterator[str]:
    if report.off:
        yield "Placement is switched off; 'colocate cpus on' places containers again."
    elif not report.active:
        yield "The policy is none: no container is placed."
    if report.topology:
        yield f"Decisions are for a made machine ({report.topology}); real cpusets are clipped to what exists."
    if not report.connected:
        yield "No runtime is connected."
    ccxs = [name for name in report.free if name.startswith("ccx ")]
    yield f"{len(report.whole)} of {count(len(ccxs), 'CCX')} are completely free."
    if len(report.after) > len(report.whole):
        yield f"With moves of shared containers {len(report.after)} would be."
    if report.strict_unmet:
        yield (
            f"A strict wish is unmet: {some(report.strict_unmet, 8)} ran before the placer could refuse it, on "
            "several CCXs. Delete the pod to have the next one placed or refused."
        )
    if report.unwritten:
        yield f"{count(report.unwritten, 'container')} will have new CPUs as soon as the runtime accepts them."
    if report.unpinned:
        yield f"{count(report.unpinned, 'container')} will have all CPUs as soon as the runtime accepts it."
    if report.unstored:
        yield f"The state cannot be stored ({report.unstored}); it is rebuilt from what runs after a restart."
    for doubt in report.doubts:
        yield f"Note: {doubt}"
    for each in report.containers:
        for warning in each.warnings:
            yield f"{each.title}: {warning}"


def _marks(report: PlacementReport) -> dict[int, str]:
    marks = dict.fromkeys(CpuSet.parse(report.isolated), ISOLATED)
    marks |= dict.fromkeys(CpuSet.parse(report.reserved), RESERVED)
    pooled = [each for each in report.containers if each.mode == CpuMode.SHARED]
    for each in pooled:
        marks |= dict.fromkeys(CpuSet.parse(each.cpus), _SHARED)
    for each in report.containers:
        if each.mode == CpuMode.EXCLUSIVE:
            marks |= dict.fromkeys(CpuSet.parse(each.cpus), TAKEN)
    return marks


def _row(each: ContainerReport) -> list[str]:
    asked = f"{each.cpu / 1000:g}"
    if not each.mode:
        return [each.title, asked, f"not placed{f': {each.passed}' if each.passed else ''}", "any"]
    pools = " + ".join(each.pools) if len(each.pools) <= 4 else f"{len(each.pools)} CCXs"
    where = f"{pools}{' alone' if each.mode == CpuMode.EXCLUSIVE else ''}" if pools else each.mode
    ended = " (ended, kept)" if each.phase == "exited" else ""
    return [each.title, asked, f"{where}: {each.cpus}{ended}", ",".join(map(str, each.mems)) or "any"]


def _tell_unstored(switched: PlacementSwitched) -> None:
    if switched.unstored:
        print(
            f"note: a restart undoes this, because the state cannot be stored ({switched.unstored})",
            file=sys.stderr,
        )


def _ask(socket: Path) -> PlacementReport:
    return asyncio.run(control.ask(socket, STATUS, AskPlacement(), PLACER))
