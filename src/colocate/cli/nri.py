"""`colocate nri`: place containers as a plugin of the container runtime."""

import argparse
import os
from pathlib import Path

import msgspec
import uvloop

from colocate.agent.configuration import build, load
from colocate.agent.nri import run_nri
from colocate.agent.schema import Config
from colocate.cli.commands import Commands
from colocate.cli.main import GROUPS
from colocate.config.document import VERSION
from colocate.cpus.placer.section import DEFAULT_NRI_SOCKET
from colocate.kubelet.paths import KubeletPaths
from colocate.runtime.cri_socket import socket_path


def add(groups: Commands) -> None:
    parser = groups.add_parser(
        "nri",
        help=GROUPS["nri"],
        description="Be a plugin of the container runtime (containerd 1.7 and newer), and give each container the "
        "CPUs that fit it.",
        epilog="SIGTERM and SIGINT stop it; SIGHUP makes it read its configuration again. See docs/placement.md.",
    )
    parser.add_argument(
        "--socket",
        metavar="ENDPOINT",
        help=f"the runtime's NRI socket (default: cpus.nri.socket, which is unix://{DEFAULT_NRI_SOCKET})",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="configuration file (only `cpus` and `log` are used); a fallback.cfg of cri-resource-manager also works",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    socket = socket_path(args.socket, "--socket") if args.socket else None

    def read() -> Config:
        if args.config is None:
            config = build(f"version: {VERSION}".encode(), "the environment", os.environ).config
        else:
            config = load(args.config, os.environ).config
        if socket is None:
            return config
        nri = msgspec.structs.replace(config.cpus.nri, socket=socket)
        return msgspec.structs.replace(config, cpus=msgspec.structs.replace(config.cpus, nri=nri))

    uvloop.run(run_nri(read, KubeletPaths.from_environment()))
