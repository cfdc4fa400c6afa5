"""`colocate gpu replay`: fills a cluster from lists of nodes and pods, and counts what each policy leaves unused."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from colocate.cli.commands import Commands, add_command
from colocate.cli.output import aligned, as_json
from colocate.errors import UserError, system_reason

if TYPE_CHECKING:
    from colocate.gpus.packing import PackingPolicy
    from colocate.replay.gpu_replay import GpuReplay

_POLICIES = ("best-fit", "fgd", "ours", "spread")
_MOST_SEEDS = 1000
_BAR = 30


def add_replay(commands: Commands) -> None:
    command = add_command(
        commands,
        "replay",
        "fill a cluster with pods of a list, and count the GPUs that each policy leaves unallocated",
        "Pods are drawn from the list until they ask for 130 percent of the GPUs; one that fits nowhere is dropped.",
    )
    command.add_argument(
        "--nodes",
        required=True,
        type=Path,
        metavar="FILE",
        help="CSV, plain or .gz: cpu_milli, memory_mib, gpu, model",
    )
    command.add_argument(
        "--pods",
        required=True,
        type=Path,
        metavar="FILE",
        help="CSV, plain or .gz: cpu_milli, memory_mib, num_gpu, gpu_milli, and gpu_spec where models matter",
    )
    command.add_argument(
        "--policy",
        default="best-fit,fgd,ours",
        metavar="NAMES",
        help=f"of {', '.join(_POLICIES)} (best-fit,fgd,ours)",
    )
    command.add_argument(
        "--seeds", type=int, default=1, metavar="N", help="replays of each policy: seeds 1 to N (1)"
    )
    command.add_argument(
        "--learned",
        action="store_true",
        help="let policies learn what pods to expect from earlier pods, as a scheduler must; without it they know "
        "how often each kind is in the list",
    )
    command.add_argument("--json", action="store_true", help="print one object for each replay")
    command.add_argument("--plot", type=Path, metavar="FILE", help="draw the replays into an SVG file")
    command.set_defaults(run=run_replay)


def run_replay(args: argparse.Namespace) -> int:
    try:
        from colocate.replay import gpu_plot, gpu_replay, gpu_trace
    except ImportError as missing:
        raise UserError(
            "the replay needs one more package; install numpy, or the extra 'packing' of kube-colocate"
        ) from missing
    policies = _policies(args.policy)
    if not 1 <= args.seeds <= _MOST_SEEDS:
        raise UserError(f"--seeds: {args.seeds} is not a number of replays; give 1 to {_MOST_SEEDS}")
    nodes, pods = gpu_trace.read_nodes(args.nodes), gpu_trace.read_pods(args.pods)
    if args.plot is not None:
        # Check now: after minutes of replay it would be too late.
        _write(args.plot, "")
    results, curves = [], []
    with _ProgressBar(len(policies) * args.seeds) as progress:
        for policy in policies:
            for seed in range(1, args.seeds + 1):
                progress.begin(f"{policy}, seed {seed}")
                result, curve = gpu_replay.replay(
                    nodes, pods, policy, seed, learned=args.learned, progress=progress.done
                )
                results.append(result)
                curves.append(curve)
    if args.plot is not None:
        _write(args.plot, gpu_plot.plot(curves, results[0].gpus_total))
    print(as_json(results) if args.json else "\n".join(_table(results, policies)))
    return 0


def _policies(text: str) -> "list[PackingPolicy]":
    from colocate.gpus.packing import PackingPolicy

    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in _POLICIES:
            raise UserError(f"--policy: there is no policy {name[:40]!r}; known are {', '.join(_POLICIES)}")
    return [PackingPolicy(name) for name in dict.fromkeys(names)]


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise UserError(f"--plot: {path}: {system_reason(error)}; name a file that can be written") from error


def _table(results: "Sequence[GpuReplay]", policies: "Sequence[PackingPolicy]") -> list[str]:
    """A column for each policy, a row for each seed, and a summary."""
    left = {(one.policy, one.seed): one.gpus_unallocated for one in results}
    seeds = sorted({one.seed for one in results})
    rows = [["SEED", *(policy.upper() for policy in policies)]]
    rows += [[str(seed), *(f"{left[policy, seed]:.1f}" for policy in policies)] for seed in seeds]
    means = {policy: sum(left[policy, seed] for seed in seeds) / len(seeds) for policy in policies}
    if len(seeds) > 1:
        rows.append(["mean", *(f"{means[policy]:.1f}" for policy in policies)])
    total = results[0].gpus_total
    lines = [f"GPUs unallocated, of {total}, after pods have asked for 130 %:", "", *aligned(rows)]
    if len(policies) > 1:
        least = min(policies, key=lambda policy: means[policy])
        others = [policy for policy in policies if policy is not least]
        second = min(others, key=lambda policy: means[policy])
        wins = sum(left[least, seed] < min(left[other, seed] for other in others) for seed in seeds)
        saved = 1 - means[least] / means[second] if means[second] else 0.0
        lines += [
            "",
            f"{least} leaves {saved:.1%} fewer GPUs unallocated than {second}, and the fewest in {wins} of "
            f"{len(seeds)} {'replay' if len(seeds) == 1 else 'replays'}.",
        ]
    return lines


class _ProgressBar:
    """A progress line on a terminal; nothing if standard error is not one."""

    def __init__(self, replays: int) -> None:
        self._replays = replays
        self._begun = 0
        self._what = ""
        self._shown = sys.stderr.isatty()
        self._started = time.monotonic()

    def __enter__(self) -> "_ProgressBar":
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def begin(self, what: str) -> None:
        self._begun += 1
        self._what = what
        self.done(0.0)

    def done(self, part: float) -> None:
        if not self._shown:
            return
        whole = (self._begun - 1 + part) / self._replays
        filled = round(whole * _BAR)
        spent = time.monotonic() - self._started
        rest = f"  {spent / whole - spent:.0f} s left" if whole > 0.02 else ""
        bar = "█" * filled + "░" * (_BAR - filled)
        sys.stderr.write(f"\r\x1b[K{bar} {whole:4.0%}  {self._what}{rest}")
        sys.stderr.flush()
