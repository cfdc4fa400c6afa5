"""`colocate cri-proxy`: place containers between the kubelet and its runtime, and put the proxy there."""

import argparse
import os
from pathlib import Path

import uvloop

from colocate.apps.config.file import build, load
from colocate.apps.config.schema import VERSION, Config
from colocate.apps.cri_proxy import ProxySockets, run_cri_proxy
from colocate.cli.commands import Commands
from colocate.cli.main import GROUPS
from colocate.kubelet.managers import check_managers
from colocate.kubelet.paths import KubeletPaths
from colocate.runtime.cri_socket import socket_path

RUNTIME = "unix:///run/containerd/containerd.sock"
LISTEN = "unix:///run/colocate/cri.sock"


def add(groups: Commands) -> None:
    parser = groups.add_parser(
        "cri-proxy",
        help=GROUPS["cri-proxy"],
        description="Stand between the kubelet and its container runtime, pass every call on, and give each "
        "container the CPUs that fit it.",
        epilog="SIGTERM and SIGINT stop it; SIGHUP makes it read its configuration again. See docs/placement.md.",
    )
    parser.add_argument(
        "--runtime",
        default=RUNTIME,
        metavar="ENDPOINT",
        help=f"the runtime's own socket (default: {RUNTIME})",
    )
    parser.add_argument(
        "--listen",
        default=LISTEN,
        metavar="ENDPOINT",
        help=f"the socket that the kubelet is to use (default: {LISTEN})",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="the configuration, of which cpus and log count; a fallback.cfg of cri-resource-manager is read, too",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    sockets = ProxySockets(socket_path(args.runtime, "--runtime"), socket_path(args.listen, "--listen"))
    check_managers(KubeletPaths.from_environment())

    def read() -> Config:
        if args.config is None:
            return build(f"version: {VERSION}".encode(), "the environment", os.environ).config
        return load(args.config, os.environ).config

    uvloop.run(run_cri_proxy(read, sockets))
