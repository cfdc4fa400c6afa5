"""One node under test: an embedded kubelet, plugins served in the background, pods, time that is moved."""

import asyncio
import gc
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from colocate.clock import Clock, ManualClock
from colocate.errors import Unavailable
from colocate.kubelet import Allocation, DevicePlugin, KubeletPaths, Plugins, Settings
from colocate.lab.faults import KubeletFaults
from colocate.lab.kubelet import EmbeddedKubelet
from colocate.lab.pod_runtime import PodRuntime, SimulatedRuntime
from colocate.lab.pod_worker import PodRecord
from colocate.model.pod import Phase, Pod

PATIENCE = float(os.environ.get("COLOCATE_TEST_PATIENCE", "10"))
"""How many real seconds a test waits for something, unless it says; time of the node's own clock does not count."""
_SHOWN_IDS = 8


class TestNode:
    """What a test does to a node.

    Waits end at once where what they wait for cannot come any more, and say what was seen.
    """

    kubelet: EmbeddedKubelet
    """The kubelet: `restart()`, `stop()`, `start()`, `until(condition)`; `panics` is what would have crashed it."""
    clock: ManualClock
    """The time of the kubelet, and of plugins that go by `self.clock`: `await node.clock.advance(300)`."""
    patience: float
    """Real seconds that a wait may take, unless it says."""

    __test__ = False  # The name is for people; pytest need not collect it.

    def __init__(self, kubelet: EmbeddedKubelet, clock: ManualClock, patience: float = PATIENCE) -> None:
        self.kubelet = kubelet
        self.patience = patience
        self.clock = clock
        self._served: dict[Plugins, asyncio.Task[None]] = {}
        self._pods = 0

    @property
    def paths(self) -> KubeletPaths:
        """Where the kubelet has its sockets and its checkpoint."""
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

    @property
    def faults(self) -> KubeletFaults:
        """What is wrong with the kubelet; a test sets it."""
        return self.kubelet.faults

    async def devices(self, resource: str, healthy: int, *, timeout: float | None = None) -> None:
        """Wait until the kubelet has so many healthy devices of a resource; AssertionError with what it has."""
        seconds = self.patience if timeout is None else timeout
        devices = self.kubelet.devices
        try:
            await self.kubelet.until(lambda: len(devices.table.healthy(resource)) == healthy, seconds=seconds)
        except Unavailable:
            raise AssertionError(
                f"waited {seconds:g} s for {healthy} healthy devices of {resource}; {self._seen(resource)}"
            ) from None

    def _seen(self, resource: str) -> str:
        table = self.kubelet.devices.table
        if resource not in table.devices:
            others = ", ".join(sorted(table.devices)) or "none"
            return f"the kubelet does not know this resource; it knows {others}"
        healthy, every = sorted(table.healthy(resource)), table.devices[resource]
        shown = ", ".join(healthy[:_SHOWN_IDS]) + (", …" if len(healthy) > _SHOWN_IDS else "")
        return f"the kubelet sees {len(healthy)} healthy of {len(every)}" + (f": {shown}" if shown else "")

    async def run_pod(
        self,
        resources: Mapping[str, int],
        *,
        name: str = "",
        command: Sequence[str] = (),
        phase: Phase = Phase.RUNNING,
        timeout: float | None = None,
        **spec: Any,
    ) -> PodRecord:
        """Put a pod with one container on the node and wait until it has come to a phase.

        AssertionError with the kubelet's reason as soon as it rejects the pod, unless `phase` is Failed.
        """
        self._pods += 1
        limits = {resource: str(count) for resource, count in resources.items()}
        container = {"name": "main", "command": list(command), "resources": {"limits": limits}}
        pod = msgspec.convert(
            {"metadata": {"name": name or f"pod-{self._pods}"}, "spec": {"containers": [container], **spec}},
            Pod,
        )
        record = self.kubelet.add_pod(pod)
        await self.until_phase(record, phase, timeout=timeout)
        return record

    async def until_phase(self, record: PodRecord, phase: Phase, *, timeout: float | None = None) -> None:
        """Wait until a pod has come to a phase; AssertionError as soon as it has ended in another."""
        seconds = self.patience if timeout is None else timeout
        try:
            await self.kubelet.until(lambda: record.status.phase == phase or record.finished, seconds=seconds)
        except Unavailable:
            raise AssertionError(
                f"waited {seconds:g} s for pod {record.pod.key} to be {phase}; it is {_told(record)}"
            ) from None
        if record.status.phase != phase:
            raise AssertionError(f"pod {record.pod.key} will not be {phase}; it is {_told(record)}")

    async def delete_pod(self, record: PodRecord) -> None:
        """Delete a pod and wait until it is gone."""
        self.kubelet.delete_pod(record.pod.key)
        await self.kubelet.until(
            lambda: record.pod.uid not in self.kubelet.records, f"{record.pod.key} to go"
        )

    def env(self, record: PodRecord, container: str = "main") -> dict[str, str]:
        """The variables that plugins have injected into a container."""
        return dict(self.allocation(record, container).envs)

    def allocation(self, record: PodRecord, container: str = "main") -> Allocation:
        """All that plugins have injected into a container: variables, device nodes, mounts, annotations, CDI names.

        A device node without a `container_path` of its own has its `host_path` there, as a runtime is told it.
        """
        spec = next(c for c in record.pod.containers if c.name == container)
        return self.kubelet.devices.allocation(record.pod, spec)

    def held(self, record: PodRecord) -> set[str]:
        """The ids that a pod holds, of any resource."""
        table = self.kubelet.devices.table
        return {id for held in table.held.values() if held.pod_uid == record.pod.uid for id in held.ids}

    async def close(self) -> None:
        """End plugins and kubelet; `embedded_kubelet` does."""
        for group in list(self._served):
            await self.kill(group)
        await self.kubelet.close()


def _told(record: PodRecord) -> str:
    """A pod's phase, and why it is in it, in the words of the kubelet."""
    status = record.status
    waiting = next((each.state.waiting for each in status.container_statuses if each.state.waiting), None)
    reason = status.reason or (waiting.reason if waiting else "")
    message = status.message or (waiting.message if waiting else "")
    why = ": ".join(word for word in (reason, message) if word)
    return f"{status.phase} ({why})" if why else str(status.phase)


@asynccontextmanager
async def embedded_kubelet(
    *,
    runtime: PodRuntime | None = None,
    folder: Path | None = None,
    patience: float = PATIENCE,
    **options: Any,
) -> AsyncIterator[TestNode]:
    """A running embedded kubelet in a folder of its own; `options` as in lab.EmbeddedKubelet."""
    # Not below pytest's tmp_path, whose length may pass what a unix socket's path allows.
    root = folder or Path(tempfile.mkdtemp(prefix="colocate-"))
    clock = options.pop("clock", None) or ManualClock()
    kubelet = EmbeddedKubelet(
        KubeletPaths(root), clock=clock, runtime=SimulatedRuntime() if runtime is None else runtime, **options
    )
    node = TestNode(kubelet, clock, patience)
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
