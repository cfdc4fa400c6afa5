"""Helpers of all commands: adding one to its group, printing, asking for confirmation, reading spans of time."""

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from typing import TypeAlias

from colocate.cli.parser import CommandParser
from colocate.errors import UserError
from colocate.model.values import to_seconds

Commands: TypeAlias = "argparse._SubParsersAction[CommandParser]"

_CLEAR = "\x1b[H\x1b[J"
_WATCH_EVERY = 2.0


def add_command(commands: Commands, name: str, about: str, more: str = "") -> CommandParser:
    """Add a command, with its summary in the help of its group and in its own help."""
    command: CommandParser = commands.add_parser(
        name, help=about, description=f"{about[0].upper()}{about[1:]}. {more}".strip()
    )
    return command


def add_output(command: argparse.ArgumentParser, *formats: str) -> None:
    """Add the flag for the output format; the first format is the default."""
    command.add_argument("-o", "--output", choices=formats, default=formats[0], help=" or ".join(formats))


def add_watch(command: argparse.ArgumentParser) -> None:
    """Add the flag that prints repeatedly; only with the first output format."""
    command.add_argument(
        "--watch", "-w", action="store_true", help="print again every two seconds, until Ctrl-C"
    )


def print_watched(args: argparse.Namespace, lines: Callable[[], Iterable[str]]) -> None:
    """Print the lines; with --watch repeatedly, on a terminal in the same place."""
    if args.watch and args.output == "json":
        raise UserError("--watch prints text, not json; leave one out")
    clear = _CLEAR if args.watch and sys.stdout.isatty() else ""
    while True:
        print(clear + "\n".join(lines()), flush=True)
        if not args.watch:
            return
        time.sleep(_WATCH_EVERY)


def add_asking_first(command: argparse.ArgumentParser) -> None:
    """Add the flags of a command that changes something; see `confirm`."""
    command.add_argument("--yes", "-y", action="store_true", help="do not ask")
    command.add_argument("--dry-run", action="store_true", help="show what would be done, and change nothing")


def confirm(args: argparse.Namespace, question: str) -> None:
    """Ask the user; UserError if there is no terminal to ask on, or the answer is no."""
    if args.yes:
        return
    if not sys.stdin.isatty():
        raise UserError("Not a terminal, so I cannot ask. Add --yes to continue.")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UserError("nothing was changed")


def seconds(text: str, flag: str) -> float:
    """The seconds of a flag, such as 90, 500ms or 15m; UserError names the flag."""
    try:
        return float(to_seconds(text))
    except ValueError as error:
        raise UserError(f"{flag}: {text!r} is not {error}") from error


def positive_seconds(text: str, flag: str) -> float:
    """The seconds of a flag that must be greater than 0."""
    found = seconds(text, flag)
    if found <= 0:
        raise UserError(f"{flag}: {text!r} is not more than 0; write it like 90s or 15m")
    return found
