"""A whole turn of the agent's memory part with 250 pods, 50 of them colocated: looking, deciding, storing.

The pods' control groups are real where this machine lets us make some. The API server's word is given; who holds
what is read from a checkpoint file, as a kubelet writes it.
"""

import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import uvloop

from bench.measure import Sample, side_by_side
from bench.ratio import Figure, Ratio, Row
from colocate import telemetry
from colocate.clock import SystemClock
from colocate.cluster.client import Client
from colocate.cluster.connection import Connection
from colocate.host import cgroups
from colocate.host.cgroups import Naming
from colocate.kubelet import checkpoint
from colocate.kubelet.paths import KubeletPaths
from colocate.memory.agent.cluster_view import ClusterView
from colocate.memory.agent.machine import Machine
from colocate.memory.agent.objects import ApiNode, ApiPod
from colocate.memory.agent.part import MemoryPart
from colocate.memory.agent.store import MemoryStore
from colocate.memory.settings import MemorySettings
from colocate.model.checkpoint import NO_TOPOLOGY, Checkpoint, Entry
from colocate.model.pod import QosClass

MANY, FEW = 250, 50
BLOCKS = 2
PERIOD = 10.0
ONE_PERCENT = PERIOD / 100
RESOURCE = MemorySettings().resource

CPU = Ratio("CPU time of a turn of the memory agent every 10 s, 250 pods", "one percent of a core", 1.0)
LINEAR = Ratio("a turn with 250 pods, per pod", "with 50 pods, per pod", 1.5)
RATIOS = (CPU, LINEAR)


class StillCluster(ClusterView):
    """A cluster that has said all it will ever say."""

    def __init__(self, pods: list[ApiPod]) -> None:
        super().__init__(Client(Connection("http://127.0.0.1:9", "the bench")), "here")
        self._still = pods

    is_synced = True
    answers = True

    @property
    def pods(self) -> list[ApiPod]:
        return self._still

    @property
    def node(self) -> ApiNode | None:
        return None


def bench() -> list[Row]:
    telemetry.configure_logs("text", "critical")
    return uvloop.run(_bench())


async def _bench() -> list[Row]:
    with _part(MANY) as many, _part(FEW) as few:
        for part in (many, few):
            await part.turn()
            assert part.report.held == len(part.report.pods) * BLOCKS > 0
        turns = [await _cpu_time(many) for _ in range(50)]
        linear = await side_by_side(_sample(many), _sample(few))
    return [
        CPU.row(
            sorted(turns)[len(turns) // 2] / ONE_PERCENT,
            Figure("median of 50", sorted(turns)[len(turns) // 2] * 1e3, "ms"),
            Figure("greatest", max(turns) * 1e3, "ms"),
        ),
        LINEAR.row(linear.ratio / (MANY / FEW), Figure("50 pods", linear.theirs * 1e3, "ms")),
    ]


async def _cpu_time(part: MemoryPart) -> float:
    start = time.process_time()
    await part.turn()
    return time.process_time() - start


def _sample(part: MemoryPart) -> Sample:
    async def sample() -> float:
        return await _cpu_time(part)

    return sample


@contextmanager
def _part(count: int) -> Iterator[MemoryPart]:
    """A part with so many pods, every fifth of which holds blocks."""
    parent = Path(f"colocate-bench-{uuid.uuid4().hex[:8]}")
    tree = cgroups.find_tree()
    uids = [str(uuid.uuid4()) for _ in range(count)]
    with tempfile.TemporaryDirectory(prefix="colocate-") as folder:
        paths = KubeletPaths(Path(folder))
        paths.device_plugins.mkdir()
        colocated = uids[:: MANY // FEW]
        paths.checkpoint.write_bytes(checkpoint.render(_held(colocated)))
        try:
            for uid in uids:
                cgroups.create(tree, parent / cgroups.pod_path(uid, QosClass.BEST_EFFORT, Naming.SYSTEMD))
            yield MemoryPart(
                MemorySettings(),
                store=MemoryStore(Path(folder) / "state"),
                machine=Machine(parent),
                cluster=StillCluster([_pod(uid, uid in colocated) for uid in uids]),
                paths=paths,
                clock=SystemClock(),
            )
        finally:
            cgroups.remove(tree, parent)


def _held(uids: list[str]) -> Checkpoint:
    entries = tuple(
        Entry(
            uid,
            "main",
            RESOURCE,
            {NO_TOPOLOGY: tuple(f"CM-{n * BLOCKS + i:04d}" for i in range(BLOCKS))},
            b"",
        )
        for n, uid in enumerate(uids)
    )
    return Checkpoint(entries, {RESOURCE: ()})


def _pod(uid: str, colocated: bool) -> ApiPod:
    limits = {RESOURCE: str(BLOCKS)} if colocated else {}
    return msgspec.convert(
        {
            "metadata": {"name": f"pod-{uid[:8]}", "namespace": "default", "uid": uid},
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
            "status": {"phase": "Running"},
        },
        ApiPod,
    )
