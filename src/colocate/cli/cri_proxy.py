"""`colocate cri-proxy`: run the proxy that places containers between the kubelet and its runtime, or install it."""

import argparse
import os
import shutil
import sys
from pathlib import Path

import msgspec
import uvloop

from colocate.agent.configuration import build, load
from colocate.agent.cri_proxy import ProxySockets, run_cri_proxy
from colocate.agent.schema import Config
from colocate.cli.commands import Commands, add_asking_first, add_command, confirm
from colocate.cli.main import GROUPS
from colocate.config.document import VERSION
from colocate.cpus.installation.kubelet_change import (
    DEFAULT_LISTEN,
    DEFAULT_RUNTIME,
    NodeFiles,
    WantedProxy,
    install_steps,
    uninstall_steps,
)
from colocate.cpus.installation.steps import Step, carry_out, has_systemd, show
from colocate.errors import UserError
from colocate.kubelet.managers import check_managers
from colocate.kubelet.paths import KubeletPaths
from colocate.runtime.cri_socket import socket_path


def add(groups: Commands) -> None:
    parser = groups.add_parser(
        "cri-proxy",
        help=GROUPS["cri-proxy"],
        description="Stand between the kubelet and its container runtime, pass every call on, and give each "
        "container the CPUs that fit it.",
        epilog="SIGTERM and SIGINT stop it; SIGHUP makes it read its configuration again. See docs/placement.md.",
    )
    _add_flags(parser, runtime=DEFAULT_RUNTIME)
    parser.set_defaults(run=run)
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    command = add_command(
        commands,
        "install",
        "put the proxy between this node's kubelet and its runtime",
        "Writes a systemd unit, starts it, keeps the kubelet's file, changes its runtime endpoint and restarts it.",
    )
    _add_flags(command, runtime="")
    _add_common(command)
    command.set_defaults(run=install)
    command = add_command(
        commands,
        "uninstall",
        "give the kubelet its runtime back, and remove the proxy",
        "Containers keep the CPUs that they have; 'colocate cpus off' before this gives all CPUs back to all.",
    )
    _add_common(command)
    command.set_defaults(run=uninstall)


def _add_flags(parser: argparse.ArgumentParser, runtime: str) -> None:
    parser.add_argument(
        "--runtime",
        default=runtime,
        metavar="ENDPOINT",
        help=f"the runtime's own socket (default: {runtime or 'the one that the kubelet uses now'})",
    )
    parser.add_argument(
        "--listen",
        default=DEFAULT_LISTEN,
        metavar="ENDPOINT",
        help=f"the socket that the kubelet will use (default: {DEFAULT_LISTEN})",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="configuration file (only `cpus` and `log` are used); a fallback.cfg of cri-resource-manager also works",
    )


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--root",
        type=Path,
        default=Path("/"),
        metavar="FOLDER",
        help="change the files of a node's image in this folder, and start nothing",
    )
    add_asking_first(parser)


def run(args: argparse.Namespace) -> None:
    sockets = ProxySockets(socket_path(args.runtime, "--runtime"), socket_path(args.listen, "--listen"))
    check_managers(KubeletPaths.from_environment())

    def read() -> Config:
        if args.config is None:
            return build(f"version: {VERSION}".encode(), "the environment", os.environ).config
        return load(args.config, os.environ).config

    uvloop.run(run_cri_proxy(read, sockets))


def install(args: argparse.Namespace) -> None:
    files = NodeFiles.below(args.root)
    listen = f"unix://{socket_path(args.listen, '--listen')}"
    runtime = args.runtime and f"unix://{socket_path(args.runtime, '--runtime')}"
    config = args.config and args.config.absolute()
    if config is not None and files.live:
        load(config, os.environ)
    check_managers(KubeletPaths(files.kubelet), files.flag_files, files.config_file)
    wanted = WantedProxy(_program(), listen, runtime, config)
    _change(args, files, install_steps(files, wanted), "Put the proxy between the kubelet and its runtime?")


def uninstall(args: argparse.Namespace) -> None:
    files = NodeFiles.below(args.root)
    by_hand = files.live and not has_systemd()
    steps = uninstall_steps(msgspec.structs.replace(files, live=False) if by_hand else files)
    if not steps:
        print("The proxy is not installed here.")
        return
    _change(args, files, steps, "Give the kubelet its runtime back?")
    if by_hand and not args.dry_run:
        print("Systemd does not run this machine: restart the kubelet yourself, then stop the proxy.")


def _change(args: argparse.Namespace, files: NodeFiles, steps: list[Step], question: str) -> None:
    for line in show(steps):
        print(line)
    if args.dry_run:
        print("Nothing was changed.")
        return
    if files.live and os.geteuid() != 0:
        raise UserError("this changes files of root and restarts services; run it as root")
    confirm(args, question)
    carry_out(steps)
    print("Done.")


def _program() -> str:
    """The path of this command, for a unit without our PATH."""
    beside = Path(sys.executable).with_name("colocate")
    found = str(beside) if beside.exists() else shutil.which("colocate")
    if found is None:
        raise UserError("the program colocate is not on the PATH; install it, and run this from there")
    return str(Path(found).absolute())
