"""The embedded kubelet: a node for plugins and pods that behaves like a recorded kubelet 1.34.

It is a stand-in: it serves the kubelet's gRPC services on real unix sockets and runs pods as real processes. It has
no API server, images, volumes or probes.
"""

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from colocate.aio import Watched, deadline
from colocate.clock import Clock, SystemClock
from colocate.errors import ColocateError, Unavailable
from colocate.host.files import write_atomically
from colocate.kubelet.paths import KubeletPaths
from colocate.lab.device_manager import STOP_GRACE, DeviceManager, KubeletPanic
from colocate.lab.device_table import Pick
from colocate.lab.faults import KubeletFaults
from colocate.lab.pod_runtime import PodRuntime, SimulatedRuntime
from colocate.lab.pod_worker import PodRecord, PodWorker
from colocate.lab.podresources import PodResources
from colocate.lab.registry import PluginRegistry
from colocate.lab.topology_policy import TopologyPolicy
from colocate.model.path_word import is_path_word
from colocate.model.pod import Pod

STATUS_SYNC = 10.0


class KubeletEvent(msgspec.Struct, frozen=True):
    """An Event that the kubelet would send to the API server."""

    at: str
    pod: str
    type: str
    reason: str
    message: str


class KubeletNodeStatus(msgspec.Struct, frozen=True):
    """Extended resources in the node's status as of the last sync."""

    capacity: dict[str, int] = {}
    allocatable: dict[str, int] = {}


class PodListener(Protocol):
    """Receives the changes of a kubelet, to update the API server."""

    def started(self, fresh: bool) -> None:
        """The kubelet has started; `fresh` if it found no checkpoint."""

    def synced(self, capacity: dict[str, int], allocatable: dict[str, int]) -> None:
        """The node's status was synced with these extended resources."""

    def pod_changed(self, record: PodRecord) -> None: ...

    def pod_gone(self, record: PodRecord) -> None: ...

    def event(self, pod: Pod, event: KubeletEvent) -> None: ...


class EmbeddedKubelet:
    """A kubelet in this process. Pods and their processes survive its restarts, as with a real one."""

    def __init__(
        self,
        paths: KubeletPaths,
        *,
        node: str = "lab",
        clock: Clock | None = None,
        runtime: PodRuntime | None = None,
        policy: TopologyPolicy = TopologyPolicy.NONE,
        pick: Pick = sorted,
        version: tuple[int, int] = (1, 34),
        status_sync: float = STATUS_SYNC,
        stop_grace: float = STOP_GRACE,
    ) -> None:
        self.paths = paths
        self.node = node
        self.boot_id = str(uuid.uuid4())
        """Random, not the kernel's: it and the folder distinguish this kubelet from others on this machine."""
        self.clock = clock or SystemClock()
        self.runtime: PodRuntime = SimulatedRuntime() if runtime is None else runtime
        self.faults = KubeletFaults()
        self.changes = Watched()
        self.status = KubeletNodeStatus()
        self.events: list[KubeletEvent] = []
        self.panics: list[str] = []
        """Errors that would have crashed a real kubelet."""
        self.faults_of_its_own: list[Exception] = []
        """Errors of the lab itself; a test fails if there is one."""
        self.starts = 0
        self.records: dict[str, PodRecord] = {}
        self.listener: PodListener | None = None
        self._policy = policy
        self._pick = pick
        self.version = version
        self._status_sync = status_sync
        self._stop_grace = stop_grace
        self._tasks: set[asyncio.Task[None]] = set()
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._running = False

    # --- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start, or start again: delete sockets, load the checkpoint, admit pods again."""
        self.starts += 1
        self._running = True
        self.devices = DeviceManager(
            self.paths.checkpoint,
            self.clock,
            self.faults,
            policy=self._policy,
            pick=self._pick,
            version=self.version,
            stop_grace=self._stop_grace,
        )
        self.paths.device_plugins.mkdir(parents=True, exist_ok=True)
        write_atomically(self.paths.boot_id, self.boot_id.encode())
        fresh = not self.paths.checkpoint.exists()
        self.devices.load()
        self.devices.active_pods = lambda: [uid for uid, r in self.records.items() if not r.finished]
        self._registry = PluginRegistry(
            self.paths,
            self.devices,
            self.faults,
            self.clock,
            self._spawn,
            refuse_same_socket=self.version >= (1, 37),
        )
        self._podresources = PodResources(self.devices.table, self.records.values, self.faults)
        await self._podresources.start(self.paths)
        await self._registry.start(self.starts)
        if self.listener:
            self.listener.started(fresh)
        self._spawn(self._relay(self.devices.changes))
        self._spawn(self._sync_status())
        self._spawn(self._watch_allocations())
        for record in self.records.values():
            record.taken_in = False
            self._work(record)

    async def stop(self) -> None:
        """Stop like a killed kubelet: without notice, and the containers keep running."""
        self._running = False
        tasks = [*self._tasks, *self._workers.values()]
        current = asyncio.current_task()
        for task in tasks:
            if task is not current:
                task.cancel()
        await asyncio.gather(*(task for task in tasks if task is not current), return_exceptions=True)
        self._workers.clear()
        await self._registry.stop()
        await self._podresources.stop()
        await self.devices.close()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def close(self) -> None:
        """Stop, end every container, and leave only the folder."""
        if self._running:
            await self.stop()
        await self.runtime.close()
        for socket in (*self.paths.root.rglob("*.sock"),):
            socket.unlink(missing_ok=True)

    # --- pods ------------------------------------------------------------------------------------

    def add_pod(self, pod: Pod) -> PodRecord:
        """Add a pod to this node, as if it was scheduled here."""
        if not pod.uid:
            pod = msgspec.structs.replace(
                pod, metadata=msgspec.structs.replace(pod.metadata, uid=str(uuid.uuid4()))
            )
        words = (pod.uid, *(container.name for container in pod.containers))
        if strange := [word for word in words if not is_path_word(word)]:
            raise ColocateError(
                f"{pod.key}: {strange[0][:100]!r} is neither a pod's uid nor a container's name"
            )
        if any(
            record.pod.key == pod.key and not record.deleting.is_set() for record in self.records.values()
        ):
            raise ColocateError(f"there is a pod {pod.key} on this node already")
        record = self.records[pod.uid] = PodRecord(pod)
        if self._running:
            self._work(record)
        return record

    def delete_pod(self, key: str) -> None:
        """Delete a pod by namespace/name; it is removed once its containers have ended."""
        self.pod(key).deleting.set()

    def pod(self, key: str) -> PodRecord:
        for record in self.records.values():
            if record.pod.key == key:
                return record
        raise ColocateError(f"there is no pod {key} on this node")

    async def until(self, holds: Callable[[], bool], what: str = "", seconds: float = 60) -> None:
        """Return as soon as `holds()` is true; Unavailable after `seconds` of real time."""
        try:
            async with deadline(SystemClock(), seconds):
                while True:
                    seen = self.changes.count
                    if self.faults_of_its_own:
                        raise self.faults_of_its_own[0]
                    if holds():
                        return
                    await self.changes.beyond(seen)
        except TimeoutError:
            raise Unavailable(f"waited {seconds:g} s for {what or holds}, without success") from None

    # --- the node --------------------------------------------------------------------------------

    def sync_status(self) -> KubeletNodeStatus:
        """Update the node's status now. A resource stays in it until it is removed by hand.

        While the device manager is busy the status is unchanged, because a real kubelet waits for it.
        """
        if self.devices.is_busy:
            return self.status
        capacity, allocatable = self.devices.capacity()
        gone = dict.fromkeys(self.status.capacity, 0)
        self.status = KubeletNodeStatus(gone | capacity, gone | allocatable)
        if self.listener:
            self.listener.synced(capacity, allocatable)
        self.changes.changed()
        return self.status

    # --- inside ----------------------------------------------------------------------------------

    def _work(self, record: PodRecord) -> None:
        worker = PodWorker(record, self.devices, self.runtime, self.clock, self._pod_changed, self._event)
        self._workers[record.pod.uid] = asyncio.create_task(self._supervise(record, worker))

    async def _supervise(self, record: PodRecord, worker: PodWorker) -> None:
        try:
            await worker.run()
        except KubeletPanic as panic:
            self.panics.append(str(panic))
            self._spawn(self.restart())
            return
        except Exception as error:  # noqa: BLE001 -- a fault of the lab's own must be seen, not waited for
            self.faults_of_its_own.append(error)
            self.changes.changed()
            await worker.give_up(error)
        self.records.pop(record.pod.uid, None)
        self._workers.pop(record.pod.uid, None)
        if self.listener:
            self.listener.pod_gone(record)
        self.changes.changed()

    def _pod_changed(self, record: PodRecord) -> None:
        if self.listener:
            self.listener.pod_changed(record)
        self.changes.changed()

    def _event(self, pod: Pod, kind: str, reason: str, message: str) -> None:
        at = datetime.fromtimestamp(self.clock.time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        event = KubeletEvent(at, pod.key, kind, reason, message)
        self.events.append(event)
        if self.listener:
            self.listener.event(pod, event)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _relay(self, source: Watched) -> None:
        seen = 0
        while True:
            seen = await source.beyond(seen)
            self.changes.changed()

    async def _sync_status(self) -> None:
        while True:
            self.sync_status()
            await self.clock.sleep(self._status_sync)

    async def _watch_allocations(self) -> None:
        seen = 0
        while True:
            seen = await self.devices.allocating.beyond(seen)
            if self.faults.restart_in_allocate:
                self.faults.restart_in_allocate = False
                self._spawn(self.restart())
