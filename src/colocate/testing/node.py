"""One node under test: an embedded kubelet, plugins served in the background, pods, time that is moved."""

import asyncio
import gc
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from colocate.clock import Clock, ManualClock
from colocate.kubelet import DevicePlugin, KubeletPaths, Plugins, Settings
from colocate.lab.kubelet import EmbeddedKubelet
from colocate.lab.pod_runtime import PodRuntime, SimulatedRuntime
from colocate.lab.pod_worker import PodRecord
from colocate.model.pod import Phase, Pod


class TestNode:
    """What a test does to a node."""

    __test__ = False  # The name is for people; pytest need not collect it.

    def __init__(self, kubelet: EmbeddedKubelet, clock: ManualClock) -> None:
        self.kubelet = kubelet
        self.clock = clock
        self._served: dict[Plugins, asyncio.Task[None]] = {}
        self._pods = 0

    @property
    def paths(self) -> KubeletPaths:
        return self.kubelet.paths

    async def serve(self, *plugins: DevicePlugin, clock: Clock | None = None, **settings: Any) -> Plugins:
        """Serve plugins in the background until the end of the test; `settings` as in kubelet.Settings."""
        group = Plugins(*plugins, settings=Settings(paths=self.paths, **settings), clock=clock or self.clock)
        self._served[group] = asyncio.create_task(group.run())
        return group

    async def stop(self, group: Plugins) -> None:
        """Stop plugins as SIGTERM would, and wait until they have; time passes meanwhile."""
        group.stop()
        stopped = self._served.pop(group)
        while not stopped.done():
            await asyncio.wait([stopped], timeout=0.01)
            if isinstance(self.clock, ManualClock):
                await self.clock.advance(0.1)
        await stopped

    async def kill(self, group: Plugins) -> None:
        """Take plugins away in the midst of whatever they do."""
        task = self._served.pop(group)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def devices(self, resource: str, healthy: int) -> None:
        """Wait until the kubelet has so many healthy devices of a resource."""
        await self.kubelet.until(
            lambda: len(self.kubelet.devices.table.healthy(resource)) == healthy,
            f"{healthy} healthy devices of {resource}",
        )

    async def run_pod(
        self,
        resources: Mapping[str, int],
        *,
        name: str = "",
        command: Sequence[str] = (),
        phase: Phase = Phase.RUNNING,
        **spec: Any,
    ) -> PodRecord:
        """Put a pod with one container on the node and wait until it has come to a phase."""
        self._pods += 1
        limits = {resource: str(count) for resource, count in resources.items()}
        container = {"name": "main", "command": list(command), "resources": {"limits": limits}}
        pod = msgspec.convert(
            {"metadata": {"name": name or f"pod-{self._pods}"}, "spec": {"containers": [container], **spec}},
            Pod,
        )
        record = self.kubelet.add_pod(pod)
        await self.until_phase(record, phase)
        return record

    async def until_phase(self, record: PodRecord, phase: Phase) -> None:
        await self.kubelet.until(
            lambda: record.status.phase == phase, f"{record.pod.key} to be {phase}, not {record.status}"
        )

    async def delete_pod(self, record: PodRecord) -> None:
        """Delete a pod and wait until it is gone."""
        self.kubelet.delete_pod(record.pod.key)
        await self.kubelet.until(
            lambda: record.pod.uid not in self.kubelet.records, f"{record.pod.key} to go"
        )

    def env(self, record: PodRecord, container: str = "main") -> dict[str, str]:
        """The variables that plugins have injected into a container."""
        spec = next(c for c in record.pod.containers if c.name == container)
        env: dict[str, str] = {}
        for response in self.kubelet.devices.injected(record.pod, spec):
            env |= response.envs
        return env

    def held(self, record: PodRecord) -> set[str]:
        """The ids that a pod holds, of any resource."""
        table = self.kubelet.devices.table
        return {id for held in table.held.values() if held.pod_uid == record.pod.uid for id in held.ids}

    async def close(self) -> None:
        for group in list(self._served):
            await self.kill(group)
        await self.kubelet.close()


@asynccontextmanager
async def embedded_kubelet(
    *, runtime: PodRuntime | None = None, folder: Path | None = None, **options: Any
) -> AsyncIterator[TestNode]:
    """A running embedded kubelet in a folder of its own; `options` as in lab.EmbeddedKubelet."""
    # Not below pytest's tmp_path, whose length may pass what a unix socket's path allows.
    root = folder or Path(tempfile.mkdtemp(prefix="colocate-"))
    clock = options.pop("clock", None) or ManualClock()
    kubelet = EmbeddedKubelet(
        KubeletPaths(root), clock=clock, runtime=SimulatedRuntime() if runtime is None else runtime, **options
    )
    node = TestNode(kubelet, clock)
    await kubelet.start()
    try:
        yield node
    finally:
        await node.close()
        if folder is None:
            shutil.rmtree(root, ignore_errors=True)
        # gRPC's asyncio side shuts down when its last object is collected. Here, where the event loop runs, that
        # is harmless; in some later frame it can wait for its own poller for ever.
        gc.collect()
