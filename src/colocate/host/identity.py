"""Which machine this is: what a kubelet on it would report in its node's status, and its name in the cluster."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec

NODE_NAME = "NODE_NAME"
"""The variable that says it; commonly set from the pod's spec.nodeName, through the downward API."""


class Identity(msgspec.Struct, frozen=True):
    """A machine, as it calls itself; a part that cannot be read is empty."""

    boot_id: str
    """Of this boot of the kernel: the same in every container of the machine, and nowhere else."""
    machine_id: str
    """Of this installation: containers mostly have another, or none."""
    hostname: str


def this_machine() -> Identity:
    return Identity(
        _line(Path("/proc/sys/kernel/random/boot_id")), _line(Path("/etc/machine-id")), socket.gethostname()
    )


def this_node(environ: Mapping[str, str] = os.environ) -> str:
    """What NODE_NAME says, or the host's name as kubelets use it."""
    return environ.get(NODE_NAME) or os.uname().nodename.lower()


def _line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""
