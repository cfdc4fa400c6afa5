"""How a command is added to its group: what it is about, and in which forms it prints."""

import argparse
from typing import TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_command(commands: Commands, name: str, about: str, more: str = "") -> argparse.ArgumentParser:
    """A command with what it is about in its group's help and, as a sentence with more after it, in its own."""
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=about, description=f"{about[0].upper()}{about[1:]}. {more}".strip()
    )
    return command


def add_output(command: argparse.ArgumentParser, *formats: str) -> None:
    """The flag that chooses among these; the first unless it is given."""
    command.add_argument("-o", "--output", choices=formats, default=formats[0], help=" or ".join(formats))
