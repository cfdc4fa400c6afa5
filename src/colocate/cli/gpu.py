"""`colocate gpu`: the GPUs of this node, which pods have what of them, and why; and replays of traces."""

import argparse
import asyncio

from colocate.cli.agent_socket import add_asking
from colocate.cli.commands import Commands, add_output
from colocate.cli.gpu_replay import add_replay
from colocate.cli.gpu_status import gpu_lines
from colocate.cli.gpu_units import add_units
from colocate.cli.main import GROUPS
from colocate.cli.output import as_json, has_colours, terminal_width, visible, wrapped
from colocate.gpus.agent.control import EXPLAIN, GPU_REPORT, AskGpuReport, ExplainGpuPod
from colocate.wire import control_socket as control


def add(groups: Commands) -> None:
    parser = groups.add_parser(
        "gpu", help=GROUPS["gpu"], description="Look at GPUs that pods share, and try how to pack them."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    status = add_asking(commands, "status", "draw the GPUs of this node and which pods have what of them")
    status.set_defaults(run=show_status)
    why = add_asking(commands, "explain", "why a pod has the GPUs that it has, or none")
    why.add_argument("pod", metavar="POD", help="NAMESPACE/NAME, or NAME in the namespace default")
    why.set_defaults(run=show_explanation)
    for command in (status, why):
        add_output(command, "text", "json")
    add_units(commands)
    add_replay(commands)


def show_status(args: argparse.Namespace) -> None:
    report = asyncio.run(control.ask(args.socket, GPU_REPORT, AskGpuReport()))
    if args.output == "json":
        print(as_json(report))
    else:
        print(*gpu_lines(report, colours=has_colours(), width=terminal_width()), sep="\n")


def show_explanation(args: argparse.Namespace) -> None:
    found = asyncio.run(control.ask(args.socket, EXPLAIN, ExplainGpuPod(args.pod)))
    if args.output == "json":
        print(as_json(found))
    else:
        for sentence in found.sentences:
            print(*wrapped(visible(sentence), terminal_width(), hanging="  "), sep="\n")
