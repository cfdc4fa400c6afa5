"""`colocate scheduler config`: check, show, or print an example of the scheduler's configuration."""

import argparse
import os
import sys
from importlib import resources
from pathlib import Path

from colocate.cli.commands import Commands, add_command
from colocate.cli.config import render
from colocate.config.file import Loaded, load_document
from colocate.config.override import from_assignments, unknown_variables
from colocate.scheduler.settings import SCHEDULER, Act, SchedulerConfig


def add(commands: Commands) -> None:
    parser = add_command(
        commands, "config", "check, show or print an example of the scheduler's configuration"
    )
    of_config = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    for name, run, about in (
        ("check", check, "check whether a scheduler can run with this file"),
        ("show", show, "print the configuration in effect, and where each overridden value comes from"),
    ):
        command = add_command(of_config, name, about)
        command.add_argument("file", metavar="FILE", type=Path)
        command.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="FIELD=VALUE",
            help="any single value, such as --set load.policy=load-aware; may be repeated",
        )
        command.set_defaults(run=run)
    command = add_command(of_config, "example", "print a commented example")
    command.set_defaults(run=example)


def check(args: argparse.Namespace) -> None:
    config = _load(args).config
    ways = " and ".join(config.act)
    usage = config.usage
    asked = [
        *(["Prometheus"] if usage.prometheus.url else []),
        *(["the metrics API"] if usage.metrics_api else []),
    ]
    samples = f"samples from {' and '.join(asked)}" if asked else "no samples: add usage.prometheus.url"
    if not config.samples:
        samples = f"GPUs by {config.gpus.policy}, which needs no samples"
    policy = f"; policy {config.load.policy}" if Act.EXTENDER in config.act else ""
    shadow = ", in shadow" if config.shadow else ""
    print(f"{args.file}: valid; acts by {ways}{shadow}{policy}; {samples}")


def show(args: argparse.Namespace) -> None:
    for line in render(_load(args)):
        print(line)


def example(args: argparse.Namespace) -> None:
    print(resources.files("colocate.scheduler").joinpath("example.yaml").read_text(), end="")


def _load(args: argparse.Namespace) -> Loaded[SchedulerConfig]:
    loaded = load_document(SCHEDULER, args.file, os.environ, from_assignments(args.set))
    for warning in unknown_variables(os.environ, SCHEDULER):
        print(f"warning: {warning}", file=sys.stderr)
    return loaded
