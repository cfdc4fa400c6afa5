"""The GPU part of an agent: GPUs followed, their memory served in every dialect, who has what told."""

from collections.abc import Mapping
from functools import partial
from typing import Protocol

from colocate.aio import first, in_thread
from colocate.clock import Clock
from colocate.gpus import GpuDisagreement, GpuPod, GpuRecords, GpuSettings, disagreements
from colocate.gpus.agent import metrics
from colocate.gpus.agent.key_file import KeyFile
from colocate.gpus.agent.monitor import GpuMonitor, KnownGpu
from colocate.gpus.agent.node_counts import GpuNodeCounts
from colocate.gpus.agent.plugin import GpuAllocation, GpuPlugin, SliceBound
from colocate.gpus.agent.report import GpuReport, gpu_report
from colocate.host.mock_gpus import MockGpus
from colocate.host.pod_groups import PROC, pod_of_process
from colocate.kubelet.paths import KubeletPaths
from colocate.model.memory import Bytes

_LAST_WORDS = 1.5
"""Seconds for what is taken away when the agent stops."""
_LEAST_GAP = 1.0
"""Seconds between two reports to Prometheus."""

UsedByPod = Mapping[str, Mapping[str, Bytes]]
"""By GPU and pod's uid, what the pod's processes have; a GPU whose processes are not known is left out."""


class GpuAllocator(GpuAllocation, Protocol):
    """The allocator that answers the plugins, as a process runs it."""

    settings: GpuSettings
    keys: KeyFile
    """Where the keys of sealed bookings are."""

    async def run(self) -> None:
        """Follow pods and the kubelet until cancelled."""

    def take_settings(self, settings: GpuSettings) -> None:
        """Go on by other settings; the dialects stay those that are served."""

    def explain(self, pod: str, waiting: GpuPod | None = None) -> tuple[str, ...]:
        """Why a pod (namespace/name) has its GPUs, or none; UserError where there is no such pod.

        `waiting` is a pod of this name that has no node yet.
        """

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be asked or done, each in a sentence."""

    @property
    def records(self) -> GpuRecords:
        """What the kubelet and the API said last."""


class GpuPart:
    """Shares the GPUs of one node."""

    def __init__(
        self,
        node: str,
        monitor: GpuMonitor,
        allocator: GpuAllocator,
        counts: GpuNodeCounts,
        clock: Clock,
        paths: KubeletPaths,
        bound: SliceBound | None = None,
    ) -> None:
        self.node = node
        self.monitor = monitor
        self.allocator = allocator
        self.counts = counts
        self._bound = bound
        self.plugins = tuple(
            GpuPlugin(dialect, monitor, allocator, paths, bound, allocator.settings.dialects)
            for dialect in allocator.settings.dialects
        )
        self._clock = clock
        self._used: UsedByPod = {}

    @property
    def mocks(self) -> MockGpus | None:
        """The mock GPUs, where they are such."""
        return self.monitor.source if isinstance(self.monitor.source, MockGpus) else None

    def report(self) -> GpuReport:
        """How everything stands."""
        notes = [
            *([f"the GPUs cannot be read: {self.monitor.silent}"] if self.monitor.silent else []),
            *self.monitor.unknown,
            *(
                [f"the node's counts of GPUs are not kept: {self.counts.trouble}"]
                if self.counts.trouble
                else []
            ),
            *self.allocator.notes,
            *(plugin.withheld for plugin in self.plugins if plugin.withheld),
            *([self._bound.warning] if self._bound is not None and self._bound.warning else []),
        ]
        return gpu_report(
            self.node,
            self._clock.time(),
            self.monitor.gpus,
            self.allocator.book,
            self.allocator.settings.dialects,
            health=self.monitor.settings,
            now=self._clock.monotonic(),
            used=self._used,
            mock=self.mocks is not None,
            notes=notes,
            mismatches=self._mismatches(),
            cost=self._bound.cost if self._bound is not None else None,
        )

    def _mismatches(self) -> tuple[GpuDisagreement, ...]:
        running: dict[str, set[str]] = {}
        for uuid, by_pod in self._used.items():
            for uid in by_pod:
                running.setdefault(uid, set()).add(uuid)
        allocator = self.allocator
        return disagreements(allocator.records, self.monitor.inventory, allocator.settings, running=running)

    async def explain(self, pod: str) -> tuple[str, ...]:
        """Why a pod of this node, or one that has no node yet, has its GPUs or none."""
        return self.allocator.explain(pod, await self.counts.waiting_pod(pod))

    async def run(self) -> None:
        """Share them until cancelled."""
        try:
            await first(
                self.monitor.run(), self.allocator.run(), self.counts.run(), self._hand_on(), self._tell()
            )
        finally:
            await self.counts.withdraw(_LAST_WORDS)
            await self.counts.client.close()

    async def _hand_on(self) -> None:
        """Tell the allocator of every change of a GPU before the kubelet hears of it."""
        await self.monitor.ready()
        while True:
            seen = self.monitor.changed.count
            self.allocator.take_inventory(self.monitor.inventory)
            await self.monitor.changed.beyond(seen)

    async def _tell(self) -> None:
        while True:
            read, booked = self.monitor.read.count, self.allocator.changed.count
            self._used = await in_thread(partial(_used_by_pod, dict(self.monitor.gpus)))
            metrics.tell(self.report())
            # Not at every answer of a burst: the report is as long as the node has pods, and Allocate waits for it.
            await self._clock.sleep(_LEAST_GAP)
            await first(self.monitor.read.beyond(read), self.allocator.changed.beyond(booked))


def _used_by_pod(gpus: Mapping[str, KnownGpu]) -> UsedByPod:
    """Only of GPUs whose processes are all to be seen: without the host's PIDs, an agent cannot tell."""
    used: dict[str, dict[str, Bytes]] = {}
    for uuid, gpu in gpus.items():
        processes = gpu.reading.processes
        if processes is None or not all((PROC / str(process.pid)).exists() for process in processes):
            continue
        by_pod = used.setdefault(uuid, {})
        for process in processes:
            if (uid := pod_of_process(process.pid)) is not None:
                by_pod[uid] = by_pod.get(uid, 0) + (process.memory or 0)
    return used
