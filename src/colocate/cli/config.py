"""`colocate config`: check, show, or print an example of the agent's configuration."""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import yaml

from colocate.agent.configuration import AGENT, load
from colocate.agent.schema import Config
from colocate.cli.commands import Commands, add_command
from colocate.cli.main import GROUPS
from colocate.cli.overrides import add_flags, from_flags
from colocate.config.file import Loaded
from colocate.config.override import unknown_variables
from colocate.cpus.placer.section import CpusSection
from colocate.devices.mock.devices import ids_of
from colocate.gpus.agent.mock_file import load_mock_gpus
from colocate.model.figures import count
from colocate.model.values import encode


def add(groups: Commands) -> None:
    parser = groups.add_parser("config", help=GROUPS["config"], description="The agent's configuration.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    for name, run, about in (
        ("check", check, "check whether an agent can run with this file"),
        ("show", show, "print the configuration in effect, and where each overridden value comes from"),
    ):
        command = add_command(commands, name, about)
        command.add_argument("file", metavar="FILE", type=Path)
        add_flags(command)
        command.set_defaults(run=run)
    command = add_command(commands, "example", "print a commented example with every field")
    command.set_defaults(run=example)


def check(args: argparse.Namespace) -> None:
    loaded = _load(args)
    config = loaded.config
    served = [f"{mock.name} ({count(len(ids_of(mock)), 'mock device')})" for mock in config.mock.resources]
    if config.memory.enabled:
        served.append(f"{config.memory.resource} (idle memory)")
    mocks = _mock_gpus(config)
    served += [f"{name} ({mocks}GPU memory)" for name in config.gpus.resources]
    if config.cpus.nri.enabled:
        served.append(f"placement of containers (policy {config.cpus.policy}, by NRI)")
    elif config.cpus != CpusSection():
        served.append(f"policy {config.cpus.policy} for 'colocate cri-proxy' and 'colocate nri'")
    print(f"{args.file}: valid; {', '.join(served) or 'nothing is switched on, so the agent would be idle'}")


def _mock_gpus(config: Config) -> str:
    """The number of mock GPUs, for a sentence; UserError if their file is invalid."""
    if config.gpus.mock is None:
        return ""
    return f"{count(len(load_mock_gpus(config.gpus.mock, 'node')), 'mock GPU')}, "


def show(args: argparse.Namespace) -> None:
    for line in render(_load(args)):
        print(line)


def example(args: argparse.Namespace) -> None:
    print(resources.files("colocate.agent").joinpath("example.yaml").read_text(), end="")


def _load(args: argparse.Namespace) -> Loaded[Config]:
    loaded = load(args.file, os.environ, from_flags(args))
    for warning in unknown_variables(os.environ, AGENT):
        print(f"warning: {warning}", file=sys.stderr)
    return loaded


def render(loaded: Loaded[Any]) -> Iterator[str]:
    """The configuration as lines of YAML, with a comment at each value that is not from the file."""
    tree = _without_unset(msgspec.to_builtins(loaded.config, enc_hook=encode))
    path: list[str] = []
    for line in yaml.safe_dump(tree, sort_keys=False, allow_unicode=True).splitlines():
        name, colon, _ = line.strip().partition(":")
        # Overridable fields are plain names, indented by two blanks per level, and never below a list.
        if colon and not line.lstrip().startswith("-"):
            path[(len(line) - len(line.lstrip())) // 2 :] = [name]
        origin = loaded.origins.get(".".join(path)) if colon else None
        yield f"{line}  # from {origin}" if origin else line


def _without_unset(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_unset(item) for name, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_unset(item) for item in value]
    return value
