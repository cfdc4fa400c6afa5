"""Commands that ask the agent of this machine, and where it listens to them."""

import argparse
import os
from pathlib import Path

from colocate.agent.configuration import AGENT
from colocate.agent.schema import DEFAULT_CONTROL_SOCKET
from colocate.cli.commands import Commands, add_command
from colocate.config.override import settable

_VARIABLE = settable(AGENT)["control.socket"].variable


def control_socket() -> Path:
    """The agent's control socket, from the environment or the default."""
    return Path(os.environ.get(_VARIABLE) or DEFAULT_CONTROL_SOCKET)


def add_asking(commands: Commands, name: str, about: str) -> argparse.ArgumentParser:
    """Add a command that asks the agent, with the flag for its socket."""
    command = add_command(commands, name, about)
    command.add_argument(
        "--socket",
        metavar="PATH",
        type=Path,
        default=control_socket(),
        help=f"the agent's control socket; else {_VARIABLE}, else {DEFAULT_CONTROL_SOCKET}",
    )
    return command
