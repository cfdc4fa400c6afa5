"""`colocate memory`: where a node's memory is, why so many blocks are offered, and the switch."""

import argparse
import asyncio
import os
import time
from pathlib import Path

from colocate.apps import control
from colocate.apps.config.override import settable
from colocate.apps.config.schema import DEFAULT_CONTROL_SOCKET
from colocate.apps.memory.control import REPORT, SWITCH, AskReport, Switch
from colocate.apps.memory.report import Report
from colocate.cli.main import GROUPS
from colocate.cli.memory_status import status_lines
from colocate.cli.output import as_json, has_colours, terminal_width, wrapped
from colocate.cli.spans import seconds
from colocate.errors import UserError

_SOCKET_VARIABLE = settable()["control.socket"].variable
_LOOK_AGAIN = 0.5


def add(groups: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = groups.add_parser(
        "memory",
        help=GROUPS["memory"],
        description="Ask the agent of this node about the memory that it sells.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    status = _command(commands, "status", "where this node's memory is, and who holds blocks")
    status.set_defaults(run=show_status)
    why = _command(commands, "explain", "why so many blocks are offered, in sentences")
    why.set_defaults(run=show_explanation)
    for command in (status, why):
        command.add_argument("-o", "--output", choices=("text", "json"), default="text", help="text or json")
    off = _command(commands, "off", "withdraw every block and restore every limit, until switched on again")
    off.add_argument(
        "--timeout",
        default="2m",
        metavar="SPAN",
        help="how long to wait until all is restored (2m); 0 waits not",
    )
    off.set_defaults(run=switch_off)
    on = _command(commands, "on", "sell memory again")
    on.set_defaults(run=switch_on)


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, about: str
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=about, description=f"{about[0].upper()}{about[1:]}."
    )
    command.add_argument(
        "--socket",
        metavar="PATH",
        type=Path,
        default=Path(os.environ.get(_SOCKET_VARIABLE) or DEFAULT_CONTROL_SOCKET),
        help=f"the agent's control socket; else {_SOCKET_VARIABLE}, else {DEFAULT_CONTROL_SOCKET}",
    )
    return command


def show_status(args: argparse.Namespace) -> None:
    report = _ask(args.socket)
    if args.output == "json":
        print(as_json(report))
    else:
        print(*status_lines(report, colours=has_colours(), width=terminal_width()), sep="\n")


def show_explanation(args: argparse.Namespace) -> None:
    report = _ask(args.socket)
    if args.output == "json":
        print(as_json({"node": report.node, "sentences": report.sentences, "silent": report.silent}))
    else:
        for sentence in (*report.sentences, *(f"Not known: {why}." for why in report.silent)):
            print(*wrapped(sentence, terminal_width(), hanging="  "), sep="\n")


def switch_off(args: argparse.Namespace) -> int:
    patience = seconds(args.timeout, "--timeout")
    try:
        switched = asyncio.run(control.ask(args.socket, SWITCH, Switch(off=True)))
    except UserError as error:
        raise UserError(
            f"{error}; only a running agent with memory.enabled gives pods back their limits: those that an agent "
            "set before it was stopped stay until then, or until the pods end"
        ) from error
    print("memory colocation was off already" if switched.was_off else "memory colocation is switched off")
    end = time.monotonic() + patience
    while True:
        report = _ask(args.socket)
        if report.restored:
            held = f"; pods still hold {report.held} blocks, as long as they run" if report.held else ""
            print(f"all is restored: no block is offered, and no limit is ours{held}")
            return 0
        if time.monotonic() >= end:
            print("not all is restored yet; 'colocate memory status' shows what is left")
            return 1 if patience else 0
        time.sleep(_LOOK_AGAIN)


def switch_on(args: argparse.Namespace) -> None:
    switched = asyncio.run(control.ask(args.socket, SWITCH, Switch(off=False)))
    print("memory colocation is switched on" if switched.was_off else "memory colocation was on already")


def _ask(socket: Path) -> Report:
    return asyncio.run(control.ask(socket, REPORT, AskReport()))
