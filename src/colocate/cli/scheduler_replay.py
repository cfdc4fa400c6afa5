"""`colocate scheduler replay`: places a trace's pods with several policies and compares the results."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from colocate.cli.commands import Commands, add_command
from colocate.cli.output import aligned, as_json
from colocate.config.file import load_document
from colocate.config.words import Problem
from colocate.errors import UserError, system_reason
from colocate.host.files import write_atomically
from colocate.load import LoadSettings, decode_recording
from colocate.scheduler.sections import check_judging
from colocate.scheduler.settings import SCHEDULER

if TYPE_CHECKING:  # numpy is an extra and slow to load: import it only when needed
    from colocate.replay.load_replay import PolicySummary, WorkloadOf

_BAR = 28
_COLUMNS = (
    "POLICY",
    "TO STOCK",
    "SEEDS",
    "HOT",
    "CPU",
    "MEMORY",
    "P95",
    "P99",
    "SPREAD",
    "PODS HOT",
    "EPISODES",
    "CROWDED",
)
_MOST_SEEDS, _MOST_NODES, _MOST_HOURS = 1000, 5000, 24 * 14


def add(commands: Commands) -> None:
    command = add_command(
        commands,
        "replay",
        "place a trace's pods with several policies, and show how often nodes ran hot",
        "The trace is a .npz file of machines, or a recording of 'colocate scheduler record'. docs/replay.md "
        "explains the figures.",
    )
    command.add_argument("--trace", type=Path, required=True, metavar="FILE", help="a trace, or a recording")
    command.add_argument(
        "--policy",
        default="",
        metavar="P,…",
        help="stock, default, taints, oracle, a policy, or a mix like balanced=3+oversell=1; each may have "
        ":filter, :nofilter, :points=N, :statistics, :pods, :nopods, :noledger after it (a choice of all)",
    )
    command.add_argument(
        "--seeds",
        default="3",
        metavar="N",
        help="how many workloads are drawn from the trace (%(default)s); or which, like 7-11",
    )
    command.add_argument(
        "--tie-breaks", type=int, default=1, metavar="N", help="how often each is placed (%(default)s)"
    )
    command.add_argument(
        "--nodes", type=int, default=60, metavar="N", help="nodes of the cluster (%(default)s)"
    )
    command.add_argument(
        "--hours", type=int, default=48, metavar="N", help="hours of the workload (%(default)s)"
    )
    command.add_argument(
        "--warm-up", type=int, default=12, metavar="N", help="hours that are not counted (%(default)s)"
    )
    command.add_argument(
        "--use", type=float, default=0.5, metavar="SHARE", help="mean use of the cluster (%(default)s)"
    )
    command.add_argument(
        "--requests",
        choices=("half", "blind"),
        default="half",
        help="what users know of their pods' use: half of it, or nothing (%(default)s)",
    )
    command.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="a scheduler's configuration, for the settings of the policies",
    )
    command.add_argument("--json", action="store_true", help="print every single run as JSON")
    command.add_argument("--plot", type=Path, metavar="FILE", help="draw node pressure over time (SVG)")
    command.set_defaults(run=replay)


def replay(args: argparse.Namespace) -> None:
    try:
        from colocate.replay import load_contenders, load_plot, load_replay
    except ModuleNotFoundError as error:
        raise UserError(
            f"a replay needs {error.name}, which is not installed; install it, or the extra 'packing' of "
            "kube-colocate"
        ) from None
    _check(args)
    contenders = load_contenders.contenders(args.policy or load_contenders.DEFAULT, _settings(args))
    workloads, seeds = _workloads(args)
    progress = ReplayProgress(sys.stderr)
    try:
        result = load_replay.replay(workloads, contenders, seeds, args.tie_breaks, progress)
    finally:
        progress.close()
    if args.plot is not None:
        title = f"Node pressure: {args.trace.name}, seed {seeds[0]}"
        _write(args.plot, load_plot.plot(result.series, title))
    if args.json:
        print(as_json(result.rows))
        return
    for line in aligned(list(_table(load_replay.summaries(result.rows)))):
        print(line)


def _workloads(args: argparse.Namespace) -> "tuple[WorkloadOf, list[int]]":
    """The function that makes the workload of a seed, and the seeds."""
    from colocate.replay.load_recorded import recorded_workload
    from colocate.replay.load_trace import is_trace, read_trace
    from colocate.replay.load_workload import Requests, WorkloadSettings, workload_of

    wanted = WorkloadSettings(
        nodes=args.nodes,
        hours=args.hours,
        warm_up=args.warm_up,
        use=args.use,
        requests=Requests(args.requests),
    )
    if args.trace.is_file() and not is_trace(args.trace):
        recording = decode_recording(_read(args.trace), str(args.trace))
        try:
            check_judging(recording.settings)
        except Problem as problem:
            raise UserError(
                f"{args.trace} is a broken recording: settings: {problem.what}; record again"
            ) from None
        workload = recorded_workload(recording, str(args.trace), min(args.warm_up, 1) * 60)
        # A recording has no random draws: seeds differ only if several nodes are equally good.
        return (lambda seed: workload), _seeds(args.seeds)
    trace = read_trace(args.trace)
    return (lambda seed: workload_of(trace, seed, wanted)), _seeds(args.seeds)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"--trace: cannot read {path} ({system_reason(error)}); check the path") from None


def _seeds(text: str) -> list[int]:
    """Seeds: `5` means the first five, `7-11` means these."""
    first, dash, last = text.partition("-")
    numbers = [word for word in (first, last) if word.isascii() and word.isdigit() and len(word) < 10]
    if len(numbers) == 1 + bool(dash):
        begin, end = (int(first), int(last)) if dash else (1, int(first))
        if 0 < end - begin + 1 <= _MOST_SEEDS:
            return list(range(begin, end + 1))
    raise UserError(f"--seeds: {text!r} is not a number from 1 to {_MOST_SEEDS}, nor a range such as 7-11")


def _check(args: argparse.Namespace) -> None:
    for flag, value, least, most in (
        ("--tie-breaks", args.tie_breaks, 1, 100),
        ("--nodes", args.nodes, 2, _MOST_NODES),
        ("--hours", args.hours, 2, _MOST_HOURS),
        ("--warm-up", args.warm_up, 0, args.hours - 1),
        ("--use", args.use, 0.01, 0.95),
    ):
        if not least <= value <= most:
            raise UserError(f"{flag}: {value} is out of range; choose {least} to {most}")


def _settings(args: argparse.Namespace) -> LoadSettings | None:
    if args.config is None:
        return None
    config = load_document(SCHEDULER, args.config, {}, ()).config
    return config.load.settings(config.usage.window)


def _table(rows: "Sequence[PolicySummary]") -> Iterator[list[str]]:
    yield list(_COLUMNS)
    for row in rows:
        ratio, low, high = (
            "-" if one is None else f"{one:.2f}" for one in (row.ratio, row.lowest, row.highest)
        )
        percents = (row.hot, row.cpu_hot, row.memory_hot, row.p95, row.p99, row.spread, row.pod_time_hot)
        counts = (row.episodes, row.crowded)
        yield [
            row.policy,
            ratio,
            f"{low} - {high}",
            *(f"{value:.2f} %" for value in percents),
            *(f"{value:.0f}" for value in counts),
        ]


class ReplayProgress:
    """A progress bar on a terminal; nothing elsewhere."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._moving = out.isatty()

    def __call__(self, done: float, run: str) -> None:
        if self._moving:
            filled = round(_BAR * done)
            bar = "█" * filled + "░" * (_BAR - filled)
            self._out.write(f"\r\x1b[2K{bar} {100 * done:3.0f} % {run[:40]}")
            self._out.flush()

    def close(self) -> None:
        if self._moving:
            self._out.write("\r\x1b[2K")
            self._out.flush()


def _write(path: Path, text: str) -> None:
    try:
        write_atomically(path, text.encode(), 0o644)
    except OSError as error:
        raise UserError(f"--plot: cannot write {path} ({system_reason(error)}); give another file") from None
