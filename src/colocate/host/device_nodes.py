"""Finds the NUMA nodes of a container's devices, by what sysfs says about a device file or a PCI address."""

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from colocate.host.system_files import SYS

_PCI = re.compile(r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_MOST_DEVICES = 64
_HIGHEST = 8
"""How many folders above a device are searched for its NUMA node."""


def device_nodes(devices: Iterable[str], sys: Path = SYS, dev: Path = Path("/dev")) -> tuple[int, ...]:
    """The NUMA nodes, lowest first; a device whose node is unknown is left out.

    Paths come from the kubelet's request, not from the container; still, only files below /dev are read.
    """
    found = set()
    for device, _ in zip(devices, range(_MOST_DEVICES), strict=False):
        node = _node(device, sys, dev)
        if node is not None:
            found.add(node)
    return tuple(sorted(found))


def _node(device: str, sys: Path, dev: Path) -> int | None:
    if _PCI.fullmatch(device):
        return _read(sys / "bus/pci/devices" / device / "numa_node")
    try:
        path = Path(os.path.realpath(device))
        if not path.is_relative_to(dev):
            return None
        mode = path.stat()
        kind = "char" if stat.S_ISCHR(mode.st_mode) else "block" if stat.S_ISBLK(mode.st_mode) else ""
        if not kind:
            return None
        number = f"{os.major(mode.st_rdev)}:{os.minor(mode.st_rdev)}"
        folder = Path(os.path.realpath(sys / "dev" / kind / number))
    except (OSError, ValueError):
        return None
    for above in (folder, *list(folder.parents)[:_HIGHEST]):
        node = _read(above / "numa_node")
        if node is None:
            node = _read(above / "device/numa_node")
        if node is not None:
            return node
    return None


def _read(file: Path) -> int | None:
    """The number in a file; None where there is no such file, or the firmware does not know (-1)."""
    try:
        text = file.read_text()[:16].strip()
    except OSError:
        return None
    return int(text) if text.isascii() and text.isdigit() else None
