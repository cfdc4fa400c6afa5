"""The `colocate` command: imports only the group of the given command.

A group is a module of this package with `add(subparsers)`, which adds its parser and sets `run`, a function
from the parsed arguments to an exit code (None is 0). Lazy imports keep the agent small: it never loads
what only the demo needs.
"""

import errno
import sys
from collections.abc import Sequence
from importlib import import_module

from colocate import __version__, startup
from colocate.cli import streams
from colocate.cli.parser import CommandParser
from colocate.errors import ColocateError, exit_on_user_error, system_reason, visible

GROUPS = {
    "agent": "run the agent of a node: serve its devices to the kubelet",
    "config": "check, show or print an example of the agent's configuration",
    "mock": "make mock devices fail and recover",
    "memory": "show how a node's memory is used and why, and switch its colocation off and on",
    "checkpoint": "show, verify, compare and repair the kubelet's record of which pods hold which devices",
    "topology": "draw the CPUs of a machine, and find what a virtual machine hides of them",
    "cpus": "show which CPUs containers would get, and why",
    "gpu": "show which pods have what of a node's GPUs, and try how to pack them",
    "cri-proxy": "place containers on CPUs, between the kubelet and its container runtime",
    "nri": "place containers on the CPUs that fit them, as a plugin of the container runtime (NRI)",
    "scheduler": "let kube-scheduler place pods by what nodes really use",
    "doctor": "check this node and the cluster, and say what to do about problems",
    "resource": "list, advertise and remove extended resources of nodes",
    "lab": "run an embedded cluster that kubectl can talk to",
    "demo": "try it on this machine, without a cluster",
    "completion": "print a completion script for a shell",
}

_INTERRUPTED = 130
_BROKEN_PIPE = 141
_ROOM = "free space on that disk, and try again"
_LIMIT = "raise the limit (ulimit -n), and try again"
_OF_THE_MACHINE = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EROFS: "mount that disk writable, and try again",
    errno.EIO: "repair that disk, and try again",
    errno.EMFILE: _LIMIT,
    errno.ENFILE: _LIMIT,
    errno.ENAMETOOLONG: "give a shorter path",
}
"""System errors that any command can meet, with their remedies."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        with exit_on_user_error(), streams.ready():
            code = _run(arguments)
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has closed it.
        code = _BROKEN_PIPE
    except ColocateError as error:
        sys.stderr.write(f"colocate: {visible(str(error))}\n")
        code = 1
    except OSError as error:
        if error.errno not in _OF_THE_MACHINE:
            raise
        where = f"{error.filename}: " if error.filename else ""
        remedy = _OF_THE_MACHINE[error.errno]
        sys.stderr.write(f"colocate: {where}{system_reason(error)}; {remedy}\n")
        code = 1
    raise SystemExit(code)


def _run(arguments: list[str]) -> int:
    parser = _parser(next((one for one in arguments if not one.startswith("-")), None))
    args = parser.parse_args(arguments)
    if "run" not in args:
        parser.print_help()
        return 0
    return args.run(args) or 0


def whole_parser() -> CommandParser:
    """The parser with every group complete."""
    return _parser(*GROUPS)


def _parser(*chosen: str | None) -> CommandParser:
    """The parser with the chosen groups complete, and the others by name."""
    parser = CommandParser(
        prog="colocate",
        description="More work on every Kubernetes node, safely.",
        epilog="'colocate GROUP --help' describes each group.",
    )
    parser.add_argument("--version", action="version", version=f"colocate {__version__}")
    if any(name in GROUPS for name in chosen):
        startup.prepare_process()
    groups = parser.add_subparsers(metavar="GROUP", title="groups")
    for name, about in GROUPS.items():
        if name in chosen:
            import_module(f"colocate.cli.{name.replace('-', '_')}").add(groups)
        else:
            groups.add_parser(name, help=about)
    return parser


if __name__ == "__main__":
    main()
