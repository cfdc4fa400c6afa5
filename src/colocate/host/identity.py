"""Which machine this is: what a kubelet on it would report in its node's status."""

import socket
from pathlib import Path

import msgspec


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


def _line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""
