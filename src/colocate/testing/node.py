"""One node under test: an embedded kubelet, plugins served in the background, pods, and a clock that the test
moves."""

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
"""Real seconds that a test waits by default; time on the node's own clock does not count."""
_SHOWN_IDS = 8


class TestNode:
    """The calls by which a test acts on a node.

    A wait ends as soon as its condition can no longer be met, and says what was seen.
    """

    kubelet: EmbeddedKubelet
    """The kubelet: `restart()`, `stop()`, `start()`, `until(condition)`; `panics` lists what would have crashed a
    real one."""
    clock: ManualClock
    """The clock of the kubelet, and of plugins that use `self.clock`: `await node.clock.advance(300)`."""
    patience: float
    """Real seconds that a wait may take by default."""

    __test__ = False  # It begins with Test, but pytest must not collect it.

    def __init__(self, kubelet: EmbeddedKubelet, clock: ManualClock, patience: float = PATIENCE) -> None:
        self.kubelet = kubelet
        self.patience = patience
        self.clock = clock
        self._served: dict[Plugins, asyncio.Task[None]] = {}
        self._pods = 0

    @property
    def paths(self) -> KubeletPaths:
        """The kubelet's sockets and its checkpoint."""
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
        """Kill plugins, whatever they are doing."""
        task = self._served.pop(group)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    @property
    def faults(self) -> KubeletFaults:
        """The kubelet's faults, which a test switches on and off."""
        return self.kubelet.faults

    async def devices(self, resource: str, healthy: int, *, timeout: float | None = None) -> None:
        """Wait until the kubelet has `healthy` healthy devices of a resource; AssertionError says what it has."""
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
        """Put a pod with one container on the node and wait until it has reached a phase.

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
        """Wait until a pod has reached a phase; AssertionError as soon as it has ended in another."""
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

        A device node without a `container_path` gets its `host_path` there, as in the message to a runtime.
        """
        spec = next(c for c in record.pod.containers if c.name == container)
        return self.kubelet.devices.allocation(record.pod, spec)

    def held(self, record: PodRecord) -> set[str]:
        """The ids that a pod holds, of any resource."""
        table = self.kubelet.devices.table
        return {id for held in table.held.values() if held.pod_uid == record.pod.uid for id in held.ids}

    async def close(self) -> None:
        """Stop the plugins and the kubelet; `embedded_kubelet` calls this."""
        for group in list(self._served):
            await self.kill(group)
        await self.kubelet.close()


def _told(record: PodRecord) -> str:
    """A pod's phase, and the kubelet's reason for it."""
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
    # Not below pytest's tmp_path, which may be too long for the path of a unix socket.
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
        # gRPC's asyncio side shuts down when its last object is collected. That is harmless here, while the event
        # loop runs; later it can wait for its own poller forever.
        gc.collect()
