"""`colocate checkpoint`: show, verify, compare and repair the kubelet's record of which pods hold which devices."""

import argparse
import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

from colocate.cli import checkpoint_tables, cluster_flags
from colocate.cli.agent_socket import control_socket
from colocate.cli.commands import Commands, add_asking_first, add_command, add_output, confirm
from colocate.cli.main import GROUPS
from colocate.cli.output import as_json, as_yaml, has_colours, painted, terminal_width, visible, wrapped
from colocate.clock import SystemClock
from colocate.cluster.client import Client
from colocate.devices.checkpoint import file as files
from colocate.devices.checkpoint.repair import RepairPlan, RepairWish, living_losers, plan, why_not_now
from colocate.devices.checkpoint.reports import CheckpointReport, Comparison, shown
from colocate.devices.checkpoint.sources import (
    AskedRecords,
    ClusterRecords,
    ask_everything,
    ask_for_names,
    ask_for_pods,
)
from colocate.devices.checkpoint_check import check
from colocate.devices.comparison import compare
from colocate.devices.findings import Finding, Severity, counted, worst
from colocate.devices.pod_names import names
from colocate.doctor.gpu_findings import ask_report, gpu_findings, gpu_holdings, without_intended
from colocate.errors import UserError
from colocate.kubelet.checkpoint import CheckpointDocument, CheckpointError, parse
from colocate.kubelet.paths import KubeletPaths
from colocate.model.checkpoint import Format, Reading
from colocate.model.records import Records

_STANDARD_INPUT = Path("-")
_FOUND = 1
_REPORTS = ("table", "json", "yaml")
_CLOCK = SystemClock()


def add(groups: Commands) -> None:
    parser = groups.add_parser(
        "checkpoint",
        help=GROUPS["checkpoint"],
        description="The kubelet's record of which pods hold which devices: the file kubelet_internal_checkpoint.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    show = _command(
        commands,
        "show",
        show_file,
        "show which pods hold what, and what was injected",
        ("table", "wide", "json", "yaml"),
    )
    show.add_argument("--offline", action="store_true", help="do not look up the names of pods")
    _add_cluster(show)
    _command(
        commands,
        "verify",
        verify,
        "say what is wrong in the file; exit 1 if something is wrong",
        _REPORTS,
    )
    diff = _command(
        commands,
        "diff",
        diff_file,
        "compare it with podresources, the API's pods and the node's status; exit 1 if they differ",
        _REPORTS,
    )
    _add_cluster(diff)
    _add_repair(commands)


def _command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int | None],
    about: str,
    formats: tuple[str, ...] = (),
) -> argparse.ArgumentParser:
    command = add_command(commands, name, about)
    source = "the kubelet's own by default"
    if formats:
        source += "; - is standard input"
        add_output(command, *formats)
    command.add_argument("file", nargs="?", type=_file, metavar="FILE", help=source)
    command.set_defaults(run=run)
    return command


def _add_cluster(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--node", default="", metavar="NAME", help="the node of the file; by default this host's name"
    )
    cluster_flags.add_flags(command)


def _add_repair(commands: Commands) -> None:
    command = _command(
        commands,
        "repair",
        repair,
        "write a new file without certain pods or resources, or with a correct checksum",
    )
    command.epilog = "The old file stays as a backup in a folder beside it. The kubelet must be stopped."
    wish = command.add_argument_group("what to change", "You can repeat each flag.")
    wish.add_argument(
        "--drop-pod", action="append", default=[], metavar="POD", help="a pod's uid, or its NAMESPACE/NAME"
    )
    wish.add_argument("--drop-resource", action="append", default=[], metavar="NAME", help="such as mock/gpu")
    wish.add_argument(
        "--fix-checksum", action="store_true", help="accept the data of a file whose checksum is wrong"
    )
    add_asking_first(command)
    command.add_argument("--force", action="store_true", help="write even if the kubelet runs or seems to")
    _add_cluster(command)


# Reading ---------------------------------------------------------------------------------------------


def _file(text: str) -> Path:
    """The file that was given; one with the name `-` can be given as `./-`."""
    path = Path(text)
    return path.absolute() if path == _STANDARD_INPUT and text != "-" else path


def _path(args: argparse.Namespace) -> Path:
    return args.file or KubeletPaths.from_environment().checkpoint


def _document(path: Path) -> CheckpointDocument:
    content = files.read_standard_input() if path == _STANDARD_INPUT else files.read(path).content
    return _parsed(path, content)


def _parsed(path: Path, content: bytes) -> CheckpointDocument:
    try:
        return parse(content)
    except CheckpointError as error:
        raise UserError(f"{path}: {error}") from error


def _own_paths(path: Path) -> KubeletPaths | None:
    """The kubelet of this machine, if the file is its own; another kubelet says nothing about the file."""
    paths = KubeletPaths.from_environment()
    return paths if path.resolve() == paths.checkpoint.resolve() else None


def _cluster(args: argparse.Namespace) -> ClusterRecords:
    is_stated = cluster_flags.is_stated(args) or bool(args.node)
    return ClusterRecords(lambda: cluster_flags.find(args), is_stated, args.node)


# Commands --------------------------------------------------------------------------------------------


def show_file(args: argparse.Namespace) -> None:
    path = _path(args)
    reading = _document(path).reading()
    asked = AskedRecords(Records())
    if not args.offline and reading.checkpoint.entries:
        asked = asyncio.run(ask_for_names(_own_paths(path), _cluster(args), _CLOCK))
    known = names(reading.checkpoint, asked.records.listing, asked.records.pods)
    whole = shown(str(path), reading, known)
    if asked.silent and any(entry.pod is None for entry in whole.entries):
        _note(f"pods without a name are shown by their uid: {'; '.join(asked.silent)}")
    if args.output in ("table", "wide"):
        wide = args.output == "wide"
        print(*checkpoint_tables.table(whole, wide, terminal_width()), sep="\n")
    else:
        _print_data(args.output, whole)


def verify(args: argparse.Namespace) -> int:
    path = _path(args)
    reading = _document(path).reading()
    report = CheckpointReport(str(path), check(reading))
    _print(args.output, report)
    if worst(report.findings) in (Severity.WARNING, Severity.ERROR):
        return _FOUND
    if args.output == "table":
        holders = counted(len(reading.checkpoint.entries or ()), "container")
        checksum = "no checksum" if reading.format is Format.PLAIN else f"checksum {reading.computed}"
        sound = f"✓ {visible(str(path))} is sound: {holders} with devices, {checksum}"
        for line in wrapped(sound, terminal_width(), hanging="  "):
            print(painted(line, "✓", "32") if has_colours() else line)
    return 0


def diff_file(args: argparse.Namespace) -> int:
    path = _path(args)
    reading = _document(path).reading()
    asked = asyncio.run(ask_everything(_own_paths(path), _cluster(args), _CLOCK))
    records = asked.records
    if records == Records():
        raise UserError(f"there is nothing to compare {path} with: {'; '.join(asked.silent)}")
    for reason in asked.silent:
        _note(f"one source was not compared: {reason}")
    compared = without_intended(compare(reading.checkpoint, records), reading.checkpoint.registered or {})
    found = [*compared, *_gpu_findings(args, path, reading, records)]
    report = Comparison(str(path), found, asked.silent)
    _print(args.output, report)
    if args.output == "table" and not report.findings:
        print(f"✓ {visible(str(path))} agrees with {_sources(records)}")
    return _FOUND if report.findings else 0


def _gpu_findings(args: argparse.Namespace, path: Path, reading: Reading, records: Records) -> list[Finding]:
    """Findings about shared GPUs, if the API answered: only it knows what pods request."""
    if records.pods is None or not gpu_holdings(reading):
        return []
    cluster = _cluster(args)

    async def ask() -> list[Finding]:
        agent = await ask_report(control_socket()) if _own_paths(path) is not None else None
        async with Client(cluster.connect(), _CLOCK) as client:
            # The agent knows its node; the cluster may have another name for it than this machine.
            node = agent.node if agent is not None else cluster.node_name
            return await gpu_findings(client, node, reading, records.listing, agent)

    return asyncio.run(ask())


def _sources(records: Records) -> str:
    named = {
        "podresources": records.listing,
        "the API's pods": records.pods,
        "the node's status": records.node,
    }
    return ", ".join(name for name, record in named.items() if record is not None)


def repair(args: argparse.Namespace) -> int:
    wish = RepairWish(args.drop_pod, args.drop_resource, args.fix_checksum)
    if not (wish.pods or wish.resources or wish.fix_checksum):
        raise UserError("nothing to change is given; add --drop-pod, --drop-resource or --fix-checksum")
    path = _path(args)
    if path == _STANDARD_INPUT:
        raise UserError("standard input cannot be repaired; give a file")
    old = files.read(path)
    document = _parsed(old.path, old.content)
    asked = AskedRecords(Records())
    if wish.pods or wish.resources:
        asked = asyncio.run(ask_for_pods(_own_paths(path) is not None, _cluster(args), _CLOCK))
    if asked.records.pods is None and any("/" in pod for pod in wish.pods):
        raise UserError(
            f"--drop-pod: cannot look up names of pods ({'; '.join(asked.silent)}); give the uid that "
            "'colocate checkpoint show' prints"
        )
    known = names(document.checkpoint, None, asked.records.pods)
    decided = plan(old, document, wish, known)
    if decided.changes_nothing:
        print(f"{visible(str(old.path))} already has that; nothing to do")
        return 0
    print(*checkpoint_tables.change(decided), sep="\n", flush=True)
    for pod in living_losers(decided, asked.records.pods or ()):
        state = "runs" if pod.phase == "Running" else f"is {pod.phase or 'new'}"
        _note(f"{pod.key} {state} and loses its devices: the kubelet may give them to another pod as well")
    if decided.mended.dropped and asked.silent:
        _note(f"cannot tell whether a pod that loses devices is running: {'; '.join(asked.silent)}")
    if args.dry_run:
        return 0
    return _carry_out(decided, args)


def _carry_out(decided: RepairPlan, args: argparse.Namespace) -> int:
    _refuse_unless_stopped(decided, args.force)
    confirm(args, f"Write {visible(str(decided.old.path))}?")
    # The kubelet may have started while the question was open.
    _refuse_unless_stopped(decided, args.force)
    backup = files.replace(decided.old, decided.content, _CLOCK)
    print(f"✓ {visible(str(decided.old.path))} is written; the old one is {visible(str(backup))}")
    return 0


def _refuse_unless_stopped(decided: RepairPlan, force: bool) -> None:
    if (reason := why_not_now(decided.old.path)) and not force:
        raise UserError(
            f"nothing was changed: {reason}, and a running kubelet overwrites the file with its own record; "
            "stop it ('systemctl stop kubelet'), or add --force"
        )


# Printing --------------------------------------------------------------------------------------------


def _print(output: str, report: CheckpointReport) -> None:
    if output == "table":
        for line in checkpoint_tables.found(report.findings):
            print(line)
    else:
        _print_data(output, report)


def _print_data(output: str, data: object) -> None:
    print(as_json(data) if output == "json" else as_yaml(data))


def _note(text: str) -> None:
    print(f"note: {visible(text)}", file=sys.stderr)
