"""The embedded kubelet's device manager: plugins in, admissions out, a checkpoint after every change.

It behaves like the real one: a list replaces the previous one; a plugin that ends leaves its devices Unhealthy, and
after five minutes its capacity is 0; admissions run one at a time, in any order; an id that vanishes during an
Allocate is a panic, as in kubelets from 1.34. For versions from 1.36, a list takes time on the clock for every new
or changed device and every held id, in which nothing else is done.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import grpc

from colocate.aio import Watched
from colocate.clock import Clock
from colocate.host.files import write_atomically
from colocate.kubelet import checkpoint
from colocate.kubelet.allocation import from_wire
from colocate.lab.admission_order import AdmissionOrder
from colocate.lab.device_table import AdmissionError, DeviceTable, DeviceWish, Pick
from colocate.lab.faults import KubeletFaults
from colocate.lab.plugin_client import PluginClient
from colocate.lab.topology_policy import NotAligned, TopologyPolicy, affinity
from colocate.model.device import Allocation, Device
from colocate.model.pod import Container, Pod
from colocate.wire import deviceplugin_pb2 as dp

STOP_GRACE = 300.0
LOOKUP = 130e-9
"""Seconds that a kubelet 1.36 needs to compare one device with one held id."""
_NOTICED = 0.05
"""Shorter times, in seconds, are counted and not waited for."""


class KubeletPanic(Exception):
    """An error that would crash a real kubelet."""


class TopologyAffinityError(Exception):
    """The topology policy does not admit the pod."""


class DeviceManager:
    """The devices of one node: registers, admits and releases them."""

    def __init__(
        self,
        checkpoint_file: Path,
        clock: Clock,
        faults: KubeletFaults,
        *,
        policy: TopologyPolicy = TopologyPolicy.NONE,
        pick: Pick = sorted,
        version: tuple[int, int] = (1, 34),
        stop_grace: float = STOP_GRACE,
    ) -> None:
        self.table = DeviceTable(pick)
        self.changes = Watched()
        self.allocating = Watched()
        self._file = checkpoint_file
        self._clock = clock
        self._faults = faults
        self._policy = policy
        self._version = version
        self._joint_streams = version < (1, 37)
        self._stop_grace = stop_grace
        self._clients: dict[str, PluginClient] = {}
        self._stopped_at: dict[str, float] = {}
        self._admission = AdmissionOrder()
        self._mutex = asyncio.Lock()
        """Held while a list is processed: registrations, admissions and the node's status wait for it."""
        self.lookups = 0
        """The cost of all lists so far: see `DeviceTable.lookups`."""
        self.active_pods: Callable[[], Iterable[str]] = tuple
        """Set by the kubelet: returns the uids of the pods that have not finished."""

    # --- life ------------------------------------------------------------------------------------

    def load(self) -> None:
        """Load the checkpoint; every resource in it counts as stopped just now."""
        if self._file.exists():
            self.table.load(checkpoint.parse(self._file.read_bytes()).checkpoint)
            self._stopped_at = dict.fromkeys(self.table.devices, self._clock.monotonic())

    async def close(self) -> None:
        for client in list(self._clients.values()):
            await client.disconnect()

    # --- plugins ---------------------------------------------------------------------------------

    async def connect(self, resource: str, socket: Path) -> PluginClient:
        """Dial a registered plugin, and make it the plugin of its resource."""
        client = PluginClient(resource, socket, self._clock)
        try:
            await client.open()
        except BaseException:
            await client.disconnect()
            raise
        async with self._mutex:
            self._clients[resource] = client
            self._stopped_at.pop(resource, None)
            self.table.devices.setdefault(resource, {})
        self.changes.changed()
        return client

    def socket_of(self, resource: str) -> Path | None:
        client = self._clients.get(resource)
        return client.socket if client else None

    async def follow(self, client: PluginClient) -> None:
        """Process a plugin's lists until its stream ends."""
        resource = client.resource

        async def take(devices: Sequence[dp.Device]) -> None:
            if self._faults.list_delay:
                await self._clock.sleep(self._faults.list_delay)
            # Up to 1.36, lists from any stream of the resource count.
            if self._clients.get(resource) is client or (self._joint_streams and resource in self._clients):
                await self.take_list(resource, devices)

        try:
            await client.follow(take)
        finally:
            await self._disconnected(client)

    async def take_list(self, resource: str, devices: Sequence[dp.Device]) -> None:
        """Process a list, which may take time on the clock."""
        async with self._mutex:
            if self._version >= (1, 36):
                cost = self.table.lookups(resource, devices, all_resources=self._version < (1, 37))
                self.lookups += cost
                if cost * LOOKUP > _NOTICED:
                    await self._clock.sleep(cost * LOOKUP)
            self.table.replace(resource, devices)
        self._changed()

    @property
    def is_busy(self) -> bool:
        """Whether it is processing a list and does nothing else."""
        return self._mutex.locked()

    async def forget(self, socket: Path) -> None:
        """Disconnect the plugin whose socket vanished from the plugin watcher's folder."""
        for client in [one for one in self._clients.values() if one.socket == socket]:
            await client.disconnect()

    async def _disconnected(self, client: PluginClient) -> None:
        """Handle the end of a stream. Up to 1.36 it disconnects the resource's current client, even a newer one."""
        await client.disconnect()
        current = self._clients.get(client.resource)
        if current is None or (current is not client and not self._joint_streams):
            return
        await current.disconnect()
        del self._clients[client.resource]
        self._stopped_at[client.resource] = self._clock.monotonic()
        self.table.mark_unhealthy(client.resource)
        self.changes.changed()

    # --- admission -------------------------------------------------------------------------------

    async def admit(
        self, pod: Pod, running: Iterable[str] = (), begun: Callable[[], None] = lambda: None
    ) -> None:
        """Allocate the devices of every container of a pod, in order; raises the reason if that is not possible.

        Containers that already run, as after a restart of the kubelet, are skipped. `begun` is called when the
        pod's admission begins.
        """
        skipped = set(running)
        async with self._admission:
            begun()
            async with self._mutex:
                pass  # A pod without devices waits as well, as in a real kubelet.
            for container in pod.containers:
                if container.name in skipped:
                    continue
                await self._admit(pod, container)
                is_init = container in pod.spec.init_containers and not container.is_sidecar
                self.table.hand_on(pod.uid, container.name, reusable=is_init)

    async def _admit(self, pod: Pod, container: Container) -> None:
        wishes = {name: count for name, count in container.devices().items() if count}
        if not wishes:
            return
        async with self._mutex:
            self.table.forget_all_but(self.active_pods())
        try:
            numa = affinity(self._policy, wishes, {name: self._free_numa(name) for name in wishes})
        except NotAligned:
            raise TopologyAffinityError("Resources cannot be allocated with Topology locality") from None
        for resource, size in wishes.items():
            if resource not in self.table.devices:
                continue  # Not from a device plugin: advertised by hand, and counted only by the scheduler.
            wish = self.table.wish(pod.uid, container.name, resource, size, numa)
            if wish is None:
                continue
            client = self._clients.get(resource)
            if client is None:
                raise AdmissionError(f"unknown Device Plugin {resource}")
            await self._allocate(client, pod, container, resource, await self._choose(client, wish))
        self._changed()

    async def _choose(self, client: PluginClient, wish: DeviceWish) -> list[str]:
        preferred: list[str] = []
        if client.options.get_preferred_allocation_available and wish.question:
            available, must_include = wish.question
            preferred = await _in_go_words(client.preferred(available, must_include, wish.size))
        return wish.choose(preferred)

    async def _allocate(
        self, client: PluginClient, pod: Pod, container: Container, resource: str, ids: list[str]
    ) -> None:
        in_flight = self.table.in_flight.setdefault(resource, set())
        in_flight.update(ids)
        self.allocating.changed()
        try:
            answer = await _in_go_words(client.allocate(ids))
        finally:
            in_flight.difference_update(ids)
        if not answer.container_responses:
            raise AdmissionError("no containers return in allocation response")
        response = answer.container_responses[0].SerializeToString(deterministic=True)
        try:
            self.table.grant(pod.uid, container.name, resource, ids, response)
        except KeyError as vanished:
            raise KubeletPanic(
                f"device {vanished.args[0]} of {resource} left the list while its Allocate was in flight "
                f"(a nil dereference in kubelets from 1.34)"
            ) from None

    async def pre_start(self, pod: Pod, container: Container) -> None:
        """Call PreStartContainer of every plugin that wants it, before the container is created."""
        for held in self.table.of_container(pod.uid, container.name):
            client = self._clients.get(held.resource)
            if client is not None and client.options.pre_start_required:
                await _in_go_words(client.pre_start(sorted(held.ids)))

    def injected(self, pod: Pod, container: Container) -> list[dp.ContainerAllocateResponse]:
        """The plugins' answers for a container."""
        return [
            dp.ContainerAllocateResponse.FromString(held.response)
            for held in self.table.of_container(pod.uid, container.name)
        ]

    def allocation(self, pod: Pod, container: Container) -> Allocation:
        """The plugins' answers for a container, merged."""
        parts = [from_wire(response) for response in self.injected(pod, container)]
        return Allocation(
            envs={name: value for one in parts for name, value in one.envs.items()},
            mounts=tuple(mount for one in parts for mount in one.mounts),
            devices=tuple(node for one in parts for node in one.devices),
            annotations={name: value for one in parts for name, value in one.annotations.items()},
            cdi=tuple(name for one in parts for name in one.cdi),
        )

    def _free_numa(self, resource: str) -> dict[str, tuple[int, ...]]:
        used = self.table.used(resource)
        known: dict[str, Device] = self.table.devices.get(resource, {})
        return {id: known[id].numa for id in self.table.healthy(resource) if id not in used}

    # --- what the node shows ---------------------------------------------------------------------

    def capacity(self) -> tuple[dict[str, int], dict[str, int]]:
        """Capacity and allocatable by resource; a resource past its grace period has capacity 0 and is removed."""
        now = self._clock.monotonic()
        expired = [name for name, since in self._stopped_at.items() if now - since >= self._stop_grace]
        for resource in expired:
            del self._stopped_at[resource]
            self.table.devices.pop(resource, None)
        if expired:
            self._changed()
        known = {resource: len(devices) for resource, devices in self.table.devices.items()}
        usable = {resource: len(self.table.healthy(resource)) for resource in self.table.devices}
        return known | dict.fromkeys(expired, 0), usable | dict.fromkeys(expired, 0)

    def _changed(self) -> None:
        """Write the checkpoint, as the kubelet does after every list and every admission."""
        write_atomically(self._file, checkpoint.render(self.table.to_checkpoint()))
        self.changes.changed()


Result = TypeVar("Result")


async def _in_go_words(call: Awaitable[Result]) -> Result:
    """Await an RPC; a failure is worded as in a pod's events."""
    try:
        return await call
    except grpc.RpcError as error:
        code = "".join(word.capitalize() for word in error.code().name.split("_"))
        raise AdmissionError(f"rpc error: code = {code} desc = {error.details()}") from error
