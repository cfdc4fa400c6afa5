"""A disk for a VM, which forgets what was not flushed when the VM's power is cut.

A killed QEMU takes the guest's page cache with it, but what the guest had sent to the disk would stay in the page
cache of this machine, flushed or not. A real disk's own cache is not that kind. So each boot writes to a fresh layer
(qcow2) on top of the earlier ones: where a block lies in the layer is noted in a table that QEMU keeps in its own
memory and writes when the guest flushes the disk. A block that was written and not flushed is not found again.
Only a block that was flushed and then written again in the same boot may keep its later content.
"""

import subprocess
from pathlib import Path

from tests.support import components

NEEDS = ("qemu-img", "e2fsprogs")

_MIB = 64
_BLOCK = 4096


class Disk:
    """An ext4 file system in a folder of the caller's, which goes with the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._layers = [folder / "disk.raw"]
        with self._layers[0].open("wb") as file:
            file.truncate(_MIB << 20)
        _run("e2fsprogs", "-q", "-F", "-b", str(_BLOCK), str(self._layers[0]))

    def next_layer(self) -> Path:
        """What the next boot writes to: all that was flushed before is below."""
        below = self._layers[-1]
        layer = self._folder / f"disk.{len(self._layers)}"
        kind = "raw" if below.suffix == ".raw" else "qcow2"
        options = f"cluster_size={_BLOCK},backing_file={below},backing_fmt={kind}"
        _run("qemu-img", "create", "-q", "-f", "qcow2", "-o", options, str(layer))
        self._layers.append(layer)
        return layer


def _run(component: str, *arguments: str) -> None:
    program = components.find(component)
    assert program
    subprocess.run([program, *arguments], check=True)
