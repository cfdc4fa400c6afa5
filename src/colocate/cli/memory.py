"""`colocate memory`: how a node's memory is used, why it offers so many blocks, and the switch."""

import argparse
import asyncio
import sys
import time
from pathlib import Path

from colocate.cli.agent_socket import add_asking
from colocate.cli.commands import Commands, add_output, add_watch, print_watched, seconds
from colocate.cli.main import GROUPS
from colocate.cli.memory_status import status_lines
from colocate.cli.output import as_json, has_colours, terminal_width, visible, wrapped
from colocate.errors import UserError
from colocate.memory.agent.control import REPORT, SWITCH, AskReport, Switch, Switched
from colocate.memory.agent.report import MemoryReport
from colocate.model.figures import count
from colocate.wire import control_socket as control

_LOOK_AGAIN = 0.5


def add(groups: Commands) -> None:
    parser = groups.add_parser(
        "memory",
        help=GROUPS["memory"],
        description="Ask the agent of this node about the memory that it offers.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    status = add_asking(commands, "status", "how this node's memory is used, and which pods hold blocks")
    add_watch(status)
    status.set_defaults(run=show_status)
    why = add_asking(commands, "explain", "why the node offers this many blocks")
    why.set_defaults(run=show_explanation)
    for command in (status, why):
        add_output(command, "text", "json")
    off = add_asking(commands, "off", "withdraw every block and restore every limit, until switched on again")
    off.add_argument(
        "--timeout",
        default="2m",
        metavar="SPAN",
        help="how long to wait until everything is restored (2m); 0: do not wait",
    )
    off.set_defaults(run=switch_off)
    on = add_asking(commands, "on", "offer memory again")
    on.set_defaults(run=switch_on)


def show_status(args: argparse.Namespace) -> None:
    if args.output == "json" and not args.watch:
        print(as_json(_ask(args.socket)))
        return
    print_watched(
        args, lambda: status_lines(_ask(args.socket), colours=has_colours(), width=terminal_width())
    )


def show_explanation(args: argparse.Namespace) -> None:
    report = _ask(args.socket)
    if args.output == "json":
        print(as_json({"node": report.node, "sentences": report.sentences, "silent": report.silent}))
    else:
        for sentence in (*report.sentences, *(f"Note: {why}." for why in report.silent)):
            print(*wrapped(visible(sentence), terminal_width(), hanging="  "), sep="\n")


def switch_off(args: argparse.Namespace) -> int:
    patience = seconds(args.timeout, "--timeout")
    try:
        switched = asyncio.run(control.ask(args.socket, SWITCH, Switch(off=True)))
    except UserError as error:
        raise UserError(
            f"{error}; only a running agent with memory.enabled restores the limits of pods: limits that an "
            "agent "
            "set before it was stopped stay until then, or until the pods end"
        ) from error
    print("memory colocation was off already" if switched.was_off else "memory colocation is switched off")
    _tell_unstored(switched)
    end = time.monotonic() + patience
    while True:
        report = _ask(args.socket)
        if report.restored:
            held = f"; pods keep {count(report.held, 'block')} until they end" if report.held else ""
            _tell(f"everything is restored: the node offers no block, and all limits are the kubelet's{held}")
            return 0
        if time.monotonic() >= end:
            _tell("not everything is restored yet; 'colocate memory status' shows what is left")
            return 1 if patience else 0
        time.sleep(_LOOK_AGAIN)


def switch_on(args: argparse.Namespace) -> None:
    switched = asyncio.run(control.ask(args.socket, SWITCH, Switch(off=False)))
    if switched.was_off:
        _tell(
            "memory colocation is switched on; blocks come after the cool-down, 'colocate memory status' says when"
        )
    else:
        print("memory colocation was on already")
    _tell_unstored(switched)


def _tell(sentence: str) -> None:
    print(*wrapped(sentence, terminal_width(), hanging="  "), sep="\n")


def _tell_unstored(switched: Switched) -> None:
    if switched.unstored:
        print(
            "note: a restart of the agent undoes this, because the agent cannot store it "
            f"({switched.unstored}); "
            "it tries again in every turn",
            file=sys.stderr,
        )


def _ask(socket: Path) -> MemoryReport:
    return asyncio.run(control.ask(socket, REPORT, AskReport()))
