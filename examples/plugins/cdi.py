"""CDI: the plugin names devices, and the container runtime looks up in a file what that means.

    python examples/plugins/cdi.py /var/run/cdi

`open` writes the file, in which every device of the kind `example.com/disk` has its device node; `allocate` answers
with names alone. The file stays when the plugin stops: a container that is restarted meanwhile needs it.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from colocate.kubelet import Allocation, DevicePlugin, run

KIND = "example.com/disk"
DISKS = {"disk-0": "/dev/loop0", "disk-1": "/dev/loop1"}


class Disks(DevicePlugin):
    resource = KIND

    def __init__(self, folder: Path) -> None:
        self._file = folder / "example.com-disk.json"

    def open(self) -> None:
        specification = {
            "cdiVersion": "0.5.0",
            "kind": KIND,
            "devices": [
                {"name": id, "containerEdits": {"deviceNodes": [{"path": path, "permissions": "r"}]}}
                for id, path in DISKS.items()
            ],
        }
        # Runtimes read the folder whenever they like, so the file must never be there half-written. They pass over
        # names that do not end in .json or .yaml.
        self._file.parent.mkdir(parents=True, exist_ok=True)
        draft = self._file.with_suffix(".draft")
        draft.write_text(json.dumps(specification, indent=2))
        draft.replace(self._file)

    def devices(self) -> list[str]:
        return list(DISKS)

    def allocate(self, ids: Sequence[str]) -> Allocation:
        return Allocation(cdi=[f"{KIND}={id}" for id in ids])


if __name__ == "__main__":
    run(Disks(Path(sys.argv[1])))
