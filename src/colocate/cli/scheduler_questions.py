"""`colocate scheduler explain | decisions | top | snapshot | score | compare`: asks a scheduler or a snapshot."""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
import uvloop

from colocate.cli import scheduler_pod_file, scheduler_tables
from colocate.cli.commands import Commands, add_command, add_output, add_watch, print_watched
from colocate.cli.output import as_json, harmless, has_colours, terminal_width, visible, wrapped
from colocate.cli.scheduler_tables import Scored
from colocate.config.words import Problem
from colocate.errors import UserError, system_reason
from colocate.host.files import write_atomically
from colocate.load import (
    ClosedNode,
    LoadSnapshot,
    LoadTable,
    NodeRow,
    compare,
    decide,
    explain_all,
    mix,
    open_to,
    pod_facts,
    snapshot,
    top,
)
from colocate.model.load import PodFacts
from colocate.scheduler import client as questions
from colocate.scheduler.client import Where
from colocate.scheduler.kube.configuration import without_login
from colocate.scheduler.loop.decision_log import Told
from colocate.scheduler.sections import check_judging
from colocate.scheduler.server.tokens import own_token_file
from colocate.scheduler.settings import DEFAULT_TOKEN_FILE

_STANDARD_INPUT = Path("-")


def add(commands: Commands) -> None:
    command = _command(commands, "explain", explain_pod, "explain why a pod went to its node, or would have")
    command.add_argument(
        "pod", metavar="POD", help="NAMESPACE/NAME, a uid, or a name in the namespace default"
    )
    which = command.add_mutually_exclusive_group()
    which.add_argument("--node", default="", metavar="NODE", help="why this node had its score")
    which.add_argument("--all", action="store_true", help="every candidate, not only the best")
    add_where(command)
    command = _command(
        commands, "decisions", show_decisions, "list the latest decisions, and whether they were followed"
    )
    command.add_argument("--last", type=int, default=20, metavar="N", help="how many (%(default)s)")
    add_where(command)
    command = _command(commands, "top", show_top, "list nodes by real and requested load, fullest first")
    add_watch(command)
    _add_snapshot(command)
    command = _command(
        commands, "snapshot", write_snapshot, "write all facts of a running scheduler to a file", formats=()
    )
    command.add_argument("file", type=Path, metavar="FILE", help="the file to write; - is standard output")
    add_where(command)
    command = _command(
        commands,
        "score",
        score,
        "show how nodes would be scored for a pod, which need not exist; not whether it fits there",
    )
    _add_pod(command)
    command.add_argument("--policy", default="", metavar="MIX", help="instead of the snapshot's own")
    _add_snapshot(command)
    command = _command(
        commands, "compare", compare_policies, "show where two policies would put a pod, and how they differ"
    )
    command.add_argument("first", metavar="POLICY", help="such as balanced, or balanced=3,oversell=1")
    command.add_argument("second", metavar="POLICY")
    _add_pod(command)
    _add_snapshot(command)


def _command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int | None],
    about: str,
    formats: tuple[str, ...] = ("table", "json"),
) -> argparse.ArgumentParser:
    command = add_command(commands, name, about)
    if formats:
        add_output(command, *formats)
    command.set_defaults(run=run)
    return command


def add_where(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("which scheduler")
    group.add_argument(
        "--url", default=Where().url, help="the scheduler's address (%(default)s); unix:/PATH for a socket"
    )
    group.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"a file with a token of the scheduler (on its own machine {DEFAULT_TOKEN_FILE}, if you may read "
        "it)",
    )
    group.add_argument(
        "--ca-file", type=Path, metavar="FILE", help="the authority that signed its certificate"
    )
    group.add_argument("--cert-file", type=Path, metavar="FILE", help="a client certificate")
    group.add_argument("--key-file", type=Path, metavar="FILE", help="its key")
    group.add_argument("--server-name", default="", metavar="NAME", help="the name in its certificate")


def _add_snapshot(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--snapshot",
        type=Path,
        metavar="FILE",
        help="a file of 'colocate scheduler snapshot', instead of asking a scheduler",
    )
    add_where(command)


def _add_pod(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--pod",
        type=Path,
        required=True,
        metavar="FILE",
        help="YAML or JSON of a pod, or of an object with a pod template; - is standard input",
    )


# Asking --------------------------------------------------------------------------------------------------


def explain_pod(args: argparse.Namespace) -> None:
    which = {"node": args.node} if args.node else {"all": "true"} if args.all else {}
    told = questions.decoded(_ask(args, "/explain", pod=args.pod, **which), Told)
    _print(args, told, scheduler_tables.told(told, terminal_width()))


def show_decisions(args: argparse.Namespace) -> None:
    latest = questions.decoded(_ask(args, "/decisions", last=str(args.last)), list[Told])
    _print(args, latest, scheduler_tables.decisions(latest, terminal_width()))


def show_top(args: argparse.Namespace) -> None:
    def rows() -> Sequence[NodeRow]:
        if args.snapshot:
            return top(snapshot.restore(_snapshot(args)))
        return questions.decoded(_ask(args, "/top"), list[NodeRow])

    if args.output == "json" and not args.watch:
        print(as_json(rows()))
        return
    print_watched(args, lambda: scheduler_tables.top(rows(), terminal_width(), colours=has_colours()))


def write_snapshot(args: argparse.Namespace) -> None:
    body = _ask(args, "/snapshot")
    # Decode it before it is written: an unusable file is worse than none.
    decoded(body, f"the answer of {without_login(args.url)}")
    if args.file == _STANDARD_INPUT:
        sys.stdout.write(harmless(body.decode()) + "\n")
        return
    try:
        _write(args.file, body)
    except OSError as error:
        raise UserError(f"{args.file} cannot be written ({system_reason(error)})") from None


def _write(path: Path, body: bytes) -> None:
    """Write a regular file atomically; write directly to others, such as /dev/stdout."""
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_bytes(body)
    else:
        write_atomically(path, body, mode=0o644)


def score(args: argparse.Namespace) -> None:
    asked = _asked(args)
    table = asked.table
    wanted = mix(args.policy) if args.policy else table.settings.policy_of(asked.scheduler_name)
    answer = decide(table, asked.pod, asked.nodes, table.now, mix=wanted, assume=False)
    explained = explain_all(answer.decision, table.settings, answer.candidates)
    scored = Scored(**msgspec.structs.asdict(explained), closed=asked.closed)
    _print(args, scored, scheduler_tables.scored(scored, terminal_width()))


def compare_policies(args: argparse.Namespace) -> None:
    first, second = mix(args.first), mix(args.second)
    asked = _asked(args)
    compared = compare(asked.table, asked.pod, asked.nodes, first, second, asked.table.now)
    compared = msgspec.structs.replace(compared, closed=asked.closed)
    _print(args, compared, scheduler_tables.comparison(compared, terminal_width()))


def _print(args: argparse.Namespace, told: object, lines: Iterable[str]) -> None:
    if args.output == "json":
        print(as_json(told))
        return
    width = terminal_width()
    for line in map(visible, lines):
        # A table is not wrapped: it already fits the width.
        shown = [line] if "  " in line else wrapped(line, width, hanging="  ")
        print("\n".join(shown))


def _ask(args: argparse.Namespace, path: str, **query: str) -> bytes:
    return uvloop.run(questions.ask(where(args), path, **query))


def where(args: argparse.Namespace) -> Where:
    """The scheduler that the flags of `add_where` name."""
    return Where(
        url=args.url,
        token_file=args.token_file or own_token_file(args.url),
        authority=args.ca_file,
        certificate=args.cert_file,
        key=args.key_file,
        server_name=args.server_name,
    )


class _Asked(msgspec.Struct, frozen=True):
    """A question about a pod: all facts but those of the pod itself, and the nodes that can take it."""

    table: LoadTable
    pod: PodFacts
    scheduler_name: str
    nodes: Sequence[str]
    closed: tuple[ClosedNode, ...]


def _asked(args: argparse.Namespace) -> _Asked:
    facts, given = _snapshot(args), scheduler_pod_file.read(args.pod)
    pod = pod_facts(given.pod)
    table = snapshot.restore(snapshot.without(facts, pod) if given.made else facts)
    nodes, closed = open_to(given.tolerations, table.nodes)
    return _Asked(table, pod, given.pod.spec.scheduler_name, nodes, closed)


def _snapshot(args: argparse.Namespace) -> LoadSnapshot:
    if args.snapshot is None:
        return decoded(_ask(args, "/snapshot"), f"the answer of {without_login(args.url)}")
    try:
        blob = args.snapshot.read_bytes()
    except OSError as error:
        raise UserError(
            f"--snapshot: cannot read {args.snapshot} ({system_reason(error)}); check the path"
        ) from None
    return decoded(blob, str(args.snapshot))


def decoded(blob: bytes, source: str) -> LoadSnapshot:
    """A snapshot with valid settings; a UserError calls it `source`."""
    found = snapshot.decode(blob, source)
    try:
        check_judging(found.settings)
    except Problem as problem:
        where = problem.path.replace("load.", "settings.", 1)
        raise UserError(
            f"{source} is not a snapshot from 'colocate scheduler snapshot': {where}: {problem.what}, or take "
            "it again"
        ) from None
    return found
