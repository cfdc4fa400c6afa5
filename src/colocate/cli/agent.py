"""`colocate agent`: run the agent of a node."""

import argparse
import os
from pathlib import Path

import uvloop

from colocate.agent.configuration import AGENT, load
from colocate.agent.process import run_agent
from colocate.agent.schema import Config
from colocate.cli.commands import Commands
from colocate.cli.main import GROUPS
from colocate.cli.overrides import add_flags, from_flags
from colocate.config.override import Override, unknown_variables


def add(groups: Commands) -> None:
    parser = groups.add_parser(
        "agent",
        help=GROUPS["agent"],
        description="Run the agent of a node: serve its devices to the kubelet.",
        epilog="SIGTERM and SIGINT stop it; SIGHUP makes it read its configuration and register again.",
    )
    parser.add_argument(
        "--config",
        required=True,
        metavar="FILE",
        type=Path,
        help="the configuration; 'colocate config example' prints one",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="for memory: decide and log, but offer no block and change nothing (memory.dryRun)",
    )
    add_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    def read() -> Config:
        flags = from_flags(args)
        if args.dry_run:
            flags.append(Override("memory.dryRun", "true", "--dry-run"))
        return load(args.config, os.environ, flags).config

    uvloop.run(run_agent(read, warnings=unknown_variables(os.environ, AGENT)))
