"""A plugin process for the crash tests: python -m tests.support.crashing_plugin KUBELET_ROOT WAY.

It withdraws its last device once the file `withdraw` appears in the kubelet's folder.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from colocate.kubelet import (
    Allocation,
    DeviceList,
    DevicePlugin,
    KubeletPaths,
    OnStop,
    Registration,
    Settings,
    run,
)

RESOURCE = "example.com/fan"
IDS = [f"fan-{n}" for n in range(4)]


class Crashing(DevicePlugin):
    resource = RESOURCE

    def __init__(self, root: Path) -> None:
        self._root = root

    def open(self) -> None:
        return None

    async def close(self) -> None:
        return None

    async def devices(self) -> AsyncIterator[DeviceList]:
        yield IDS
        while not (self._root / "withdraw").exists():  # noqa: ASYNC110 -- a file made by another process
            await asyncio.sleep(0.005)
        yield IDS[:-1]

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        return sorted(available)[:size]

    def prestart(self, ids: Sequence[str]) -> None:
        return None

    def allocate(self, ids: Sequence[str]) -> Allocation:
        return Allocation(envs={"FANS": ",".join(ids)})


if __name__ == "__main__":
    root = Path(sys.argv[1])
    run(
        Crashing(root),
        settings=Settings(
            paths=KubeletPaths(root),
            registration=Registration(sys.argv[2]),
            on_stop=OnStop.WITHDRAW,
            linger=0.05,
            holders_interval=0.02,
            first_retry=0.02,
            last_retry=0.2,
        ),
    )
