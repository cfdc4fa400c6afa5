"""`colocate cpus replay`: places recorded containers again, and counts needless crossings."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from colocate.cli.commands import Commands, add_command, add_output
from colocate.cli.output import as_json, fitted, terminal_width, visible, wrapped
from colocate.errors import UserError, system_reason

if TYPE_CHECKING:
    from colocate.replay.cpu_replay import CpuReplay, Crossings


def add_replay(commands: Commands) -> None:
    command = add_command(
        commands,
        "replay",
        "place recorded containers once more, and count the sockets, NUMA nodes and L3 caches that they cross "
        "needlessly",
        "Needless is what an empty machine would not have needed. What the kubelet gave stands beside it, where the "
        "file tells.",
    )
    command.add_argument(
        "--histories",
        required=True,
        type=Path,
        metavar="FILE",
        help="JSON, plain or .gz: machines, and exclusive requests that come and go on them",
    )
    command.add_argument("--plot", type=Path, metavar="FILE", help="draw the crossings into an SVG file")
    add_output(command, "text", "json")
    command.set_defaults(run=run_replay)


def run_replay(args: argparse.Namespace) -> int:
    from colocate.replay import cpu_histories, cpu_plot, cpu_replay

    machines, histories = cpu_histories.read_histories(args.histories)
    if args.plot is not None:
        _write(args.plot, "")
    replays = [cpu_replay.replay(machines[history.machine], history) for history in histories]
    if args.plot is not None:
        _write(args.plot, cpu_plot.plot(replays))
    if args.output == "json":
        print(as_json(replays))
    else:
        print(*_lines(replays, terminal_width()), sep="\n")
    return 0


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise UserError(f"--plot: {path}: {system_reason(error)}; name a file that can be written") from error


def _lines(replays: "Sequence[CpuReplay]", width: int) -> list[str]:
    from colocate.replay.cpu_plot import LEVELS, TITLES, per_hundred
    from colocate.replay.cpu_replay import OURS, added

    containers = sum(one.containers for one in replays)
    total = added(replays)
    recorded = [name for name in total if name != OURS]
    heads = [title.upper() for title in LEVELS.values()]
    rows = [["OF 100 CONTAINERS", *heads]]
    rows += [
        [TITLES.get(name, name), *(f"{per_hundred(found, level, containers):.1f}" for level in LEVELS)]
        for name, found in total.items()
    ]
    rows += [
        [f"ours, of {TITLES.get(name, name)}", *(_ratio(total[OURS], total[name], level) for level in LEVELS)]
        for name in recorded
    ]
    histories = "1 history" if len(replays) == 1 else f"{len(replays)} histories"
    about = (
        f"Needless crossings of {containers} containers in {histories}: of sockets, NUMA nodes and L3 caches that an "
        "empty machine would not have needed."
    )
    lines = [*wrapped(about, width), "", *fitted(rows, width), ""]
    beside = recorded[:1]
    rows = [["MACHINE", "CONTAINERS", *heads]]
    for machine in dict.fromkeys(one.machine for one in replays):
        some = [one for one in replays if one.machine == machine]
        found = added(some)
        cells = [" / ".join(str(getattr(found[name], level)) for name in (OURS, *beside)) for level in LEVELS]
        rows.append([visible(machine), str(sum(one.containers for one in some)), *cells])
    if beside:
        lines += [*wrapped(f"In all, ours / {TITLES[beside[0]]}:", width), ""]
    return [*lines, *fitted(rows, width)]


def _ratio(ours: "Crossings", theirs: "Crossings", level: str) -> str:
    count: int = getattr(theirs, level)
    return f"{getattr(ours, level) / count:.2f}" if count else "-"
