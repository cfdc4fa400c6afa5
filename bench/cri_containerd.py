"""CreateContainer at a real containerd, whose own work is what the placer's adds to: through the proxy, and bare.

Containerd 1.6, the relay and the proxy run in processes of their own on this disk. Containers are created in one
sandbox, in short turns on each side, and removed outside of the time that is measured. Where containerd is not here,
or this is not root, nothing is measured.
"""

import itertools
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop
from tests.support import components
from tests.support.containerd import Kubelet, running

from bench.cri_proxy import BARE, calmest, figures, p99, server
from bench.ratio import Ratio, Row

TURN = 3
TURNS = 25
RATIOS: tuple[Ratio, ...] = (
    (
        Ratio("CreateContainer at containerd, p50", BARE, 1.5),
        Ratio("CreateContainer at containerd, p99", BARE, 1.5),
    )
    if os.geteuid() == 0 and not components.missing("containerd", "runc", "busybox")
    else ()
)


def bench() -> list[Row]:
    return uvloop.run(_bench()) if RATIOS else []


async def _bench() -> list[Row]:
    with TemporaryDirectory(prefix="cri") as name:
        folder = Path(name)
        async with AsyncExitStack() as stack:
            containerd = await stack.enter_async_context(running(folder, "1.6"))
            sockets = {"runtime": containerd.socket}
            for kind in ("bare", "ours"):
                sockets[kind] = folder / f"{kind}.sock"
                await stack.enter_async_context(server(kind, containerd.socket, sockets[kind]))
            kubelets = {
                kind: await stack.enter_async_context(Kubelet(socket, containerd.cgroup_parent))
                for kind, socket in sockets.items()
            }
            sandboxes = {
                kind: await kubelet.run_sandbox(kind, qos="burstable") for kind, kubelet in kubelets.items()
            }
            attempts = itertools.count()
            rows = await calmest(lambda: _compared(kubelets, sandboxes, attempts))
            await kubelets["runtime"].remove_all()
    return rows


async def _compared(
    kubelets: dict[str, Kubelet], sandboxes: dict[str, str], attempts: Iterator[int]
) -> list[Row]:
    taken: dict[str, list[list[float]]] = {kind: [] for kind in kubelets}
    for turn in range(TURNS + 1):
        for kind, kubelet in kubelets.items():
            seconds = []
            for _ in range(TURN):
                started = time.perf_counter()
                made = await kubelet.create(sandboxes[kind], "main", cpus=0.5, attempt=next(attempts))
                seconds.append(time.perf_counter() - started)
                await kubelet.remove(made)
            if turn:
                taken[kind].append(seconds)
    medians = {
        kind: statistics.median(second for turn in turns for second in turn) for kind, turns in taken.items()
    }
    pairs = zip(taken["ours"], taken["bare"], strict=True)
    ratio = statistics.median(statistics.median(one) / statistics.median(other) for one, other in pairs)
    slow = {kind: p99(turns) for kind, turns in taken.items()}
    return [
        RATIOS[0].row(ratio, *figures(medians)),
        RATIOS[1].row(slow["ours"] / slow["bare"], *figures(slow)),
    ]
