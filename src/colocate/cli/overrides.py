"""Flags that override values of the configuration file."""

import argparse

from colocate.agent.configuration import AGENT
from colocate.config.override import Override, from_assignments, settable

_SHORT = {
    "--kubelet-root": ("kubelet.root", "DIR", "the kubelet's folder"),
    "--log-level": ("log.level", "LEVEL", "debug, info, warning or error"),
    "--log-format": ("log.format", "FORMAT", "auto, text or json"),
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags to a command that reads a configuration file."""
    group = parser.add_argument_group(
        "overrides",
        "Values here override COLOCATE_… variables, and those override the file. "
        f"Variables are named after fields, such as {settable(AGENT)['kubelet.onStop'].variable}=withdraw.",
    )
    for flag, (path, metavar, about) in _SHORT.items():
        group.add_argument(flag, dest=path, metavar=metavar, help=f"{about} ({path})")
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="any other single value, such as --set kubelet.onStop=withdraw; may be repeated",
    )


def from_flags(args: argparse.Namespace) -> list[Override]:
    """The given overrides; the short flags override --set."""
    stated = vars(args)
    short = [
        Override(path, stated[path], flag)
        for flag, (path, _, _) in _SHORT.items()
        if stated.get(path) is not None
    ]
    return from_assignments(args.set) + short
