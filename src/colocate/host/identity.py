"""Identifies this machine: the ids that a kubelet would report in the node's status, and its node name."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec

NODE_NAME = "NODE_NAME"
"""The environment variable with the node's name, usually set from spec.nodeName by the downward API."""


class Identity(msgspec.Struct, frozen=True):
    """The ids of a machine; one that cannot be read is empty."""

    boot_id: str
    """The id of this boot of the kernel: equal in every container of the machine, and nowhere else."""
    machine_id: str
    """The id of this installation: most containers have another, or none."""
    hostname: str


def this_machine() -> Identity:
    return Identity(
        _line(Path("/proc/sys/kernel/random/boot_id")), _line(Path("/etc/machine-id")), socket.gethostname()
    )


def this_node(environ: Mapping[str, str] = os.environ) -> str:
    """The node's name from NODE_NAME, or the host name as kubelets use it."""
    return environ.get(NODE_NAME) or os.uname().nodename.lower()


def _line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""
