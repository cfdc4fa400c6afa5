"""`colocate doctor`: what is wrong on this node and in the cluster, and what to do about it."""

import argparse
import os
from pathlib import Path

import msgspec
import uvloop

from colocate import telemetry
from colocate.agent.configuration import build, load
from colocate.agent.schema import Config
from colocate.cli import cluster_flags
from colocate.cli.commands import Commands, add_output
from colocate.cli.main import GROUPS
from colocate.cli.output import as_json, has_colours, terminal_width, visible, wrapped
from colocate.clock import SystemClock
from colocate.cluster.client import Client, ClientSettings
from colocate.config.document import VERSION
from colocate.config.file import load_document
from colocate.doctor import examination
from colocate.doctor.check import Check, DoctorSection, Patient, Scheduling
from colocate.doctor.report import CheckVerdict, Examined
from colocate.errors import UserError, unreadable
from colocate.host.identity import NODE_NAME, this_node
from colocate.kubelet import KubeletPaths
from colocate.scheduler.kube.extender import read_kube_scheduler
from colocate.scheduler.settings import SCHEDULER

_IMPATIENT = ClientSettings(timeout=10, list_timeout=20, attempts=2)
_COLOURS = {
    CheckVerdict.ABSENT: "90",
    CheckVerdict.GOOD: "32",
    CheckVerdict.WARN: "33",
    CheckVerdict.BAD: "31",
}


class Written(msgspec.Struct, frozen=True):
    """One result with its section and check: an element of `-o json`."""

    section: str
    check: str
    verdict: str
    reason: str
    remedy: str


def add(groups: Commands) -> None:
    parser = groups.add_parser(
        "doctor",
        help=GROUPS["doctor"],
        description="Check this node's kubelet and the cluster, and say what is wrong and what to do about "
        "it. Changes nothing. Exit code: 0 all is well (✓, or – where something is not available here), 1 "
        "something deserves a look (!), 2 something does not work (✗).",
    )
    parser.add_argument(
        "checks", nargs="*", metavar="CHECK", help="only the checks that match, such as 'memory*'"
    )
    add_output(parser, "text", "json")
    parser.add_argument("--list", action="store_true", help="list the checks without running them")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="the configuration of this node's agent, cri-proxy or nri, for its sockets and folders",
    )
    parser.add_argument("--kubelet-root", type=Path, metavar="DIR", help="the kubelet's folder")
    parser.add_argument(
        "--node", metavar="NAME", help=f"this machine's node ({NODE_NAME}, or the host's name)"
    )
    parser.add_argument(
        "--scheduler-config",
        type=Path,
        metavar="FILE",
        help="the configuration of 'colocate scheduler', to also check scheduling by load",
    )
    parser.add_argument(
        "--kube-scheduler-config",
        type=Path,
        metavar="FILE",
        help="the configuration of the kube-scheduler that asks the extender, to reach it the same way",
    )
    parser.add_argument("--no-cluster", action="store_true", help="do not check the cluster")
    cluster_flags.add_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    checks = examination.chosen(args.checks)
    if args.no_cluster:
        checks = [check for check in checks if check.section is not DoctorSection.CLUSTER]
    if not checks:
        raise UserError(f"no check is named {' or '.join(args.checks)}; 'colocate doctor --list' lists them")
    if args.list:
        for check in checks:
            print(f"{check.name} ({check.section})")
        return 0
    if args.scheduler_config is None:
        _check_named(args.checks)
    # The checks report everything, and standard output belongs to them.
    telemetry.configure_logs(level="error")
    return int(uvloop.run(_examine(args, checks)))


def _check_named(names: list[str]) -> None:
    """A named check of scheduling needs the scheduler's configuration."""
    for name in names:
        found = examination.chosen([name])
        if found and all(check.section is DoctorSection.LOAD for check in found):
            raise UserError(
                f"{name}: this check needs the configuration of 'colocate scheduler'; give it with "
                "--scheduler-config"
            )


async def _examine(args: argparse.Namespace, checks: list[Check]) -> CheckVerdict:
    config = _node_config(args.config)
    cluster = _cluster(args)
    printer = _Printer(args.output)
    try:
        patient = Patient(
            KubeletPaths(args.kubelet_root or config.kubelet.root),
            config.control.socket,
            args.node or this_node(),
            SystemClock(),
            cluster,
            placement_socket=config.cpus.socket,
            placement_state=config.cpus.state_folder,
            nri_socket=config.cpus.nri.socket,
            scheduling=_scheduling(args),
        )
        async for examined in examination.examine(patient, checks):
            printer.show(examined)
    finally:
        if isinstance(cluster, Client):
            await cluster.close()
    printer.end()
    return printer.worst


def _node_config(file: Path | None) -> Config:
    """The configuration of this node; without a file, from the environment."""
    if file is not None:
        return load(file, os.environ).config
    return build(f"version: {VERSION}".encode(), "the environment", os.environ).config


def _scheduling(args: argparse.Namespace) -> Scheduling | None:
    if args.scheduler_config is None:
        if args.kube_scheduler_config is not None:
            raise UserError("--kube-scheduler-config: this needs --scheduler-config; give both")
        return None
    config = load_document(SCHEDULER, args.scheduler_config, os.environ).config
    file = args.kube_scheduler_config
    if file is None:
        return Scheduling(config)
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"--kube-scheduler-config: {file} cannot be read ({unreadable(error)}); check the path"
        ) from None
    return Scheduling(config, read_kube_scheduler(text, str(file)))


def _cluster(args: argparse.Namespace) -> Client | str:
    """The API client, or why there is none."""
    if args.no_cluster:
        return "--no-cluster is given"
    try:
        return Client(cluster_flags.find(args), settings=_IMPATIENT)
    except UserError as error:
        if cluster_flags.is_stated(args):
            raise
        return str(error)


class _Printer:
    """Prints results as they come, or all of them as JSON at the end."""

    def __init__(self, output: str) -> None:
        self.worst = CheckVerdict.GOOD
        self._written: list[Written] | None = [] if output == "json" else None
        self._section = ""
        self._width = terminal_width()
        self._colours = has_colours()
        self._counts = dict.fromkeys(CheckVerdict, 0)

    def show(self, examined: Examined) -> None:
        self.worst = max(self.worst, examined.worst)
        for result in examined.results:
            self._counts[result.verdict] += 1
            if self._written is not None:
                verdict = result.verdict.name.lower()
                self._written.append(
                    Written(examined.section, examined.check, verdict, result.reason, result.remedy)
                )
                continue
            if examined.section != self._section:
                print(f"{chr(10) if self._section else ''}{examined.section}", flush=True)
                self._section = examined.section
            self._print(result.verdict, f"{examined.check}: {visible(result.reason)}")
            if result.remedy:
                lines = wrapped(f"→ {visible(result.remedy)}", self._width, " " * 4, " " * 6)
                print("\n".join(lines), flush=True)

    def end(self) -> None:
        if self._written is not None:
            print(as_json(self._written))
            return
        counts = self._counts
        shown = (CheckVerdict.GOOD, CheckVerdict.ABSENT, CheckVerdict.WARN, CheckVerdict.BAD)
        print("\n" + "  ".join(f"{counts[verdict]} {verdict.sign}" for verdict in shown))

    def _print(self, verdict: CheckVerdict, text: str) -> None:
        first, *others = wrapped(f"{verdict.sign} {text}", self._width, " " * 2, " " * 4)
        if self._colours:
            first = first.replace(verdict.sign, f"\x1b[{_COLOURS[verdict]}m{verdict.sign}\x1b[0m", 1)
        print("\n".join((first, *others)), flush=True)
