"""What the cluster is told of a node's GPUs: how many, with how many cores, in its status; which, and who has what of
them, in an annotation; and, by events of the node, why one is not given to new pods.

It is kept there while the agent runs. When it stops, the numbers are taken away, and the annotation offers no GPU any
more; who has what stays told, for schedulers and for the agent's next life.

No device plugin stands behind these names, so the kubelet keeps what it finds; one that lost its checkpoint writes 0
instead. The node is therefore followed, and its numbers are set again whenever they differ.
"""

import random
from collections.abc import Mapping, Sequence

import msgspec

from colocate import telemetry
from colocate.aio import deadline, first
from colocate.cluster.client import Client
from colocate.cluster.errors import ClusterError, PreconditionFailed
from colocate.cluster.events import EventRecorder, EventType, Reference
from colocate.cluster.json_patch import Patch
from colocate.cluster.node_status import set_extended_resources
from colocate.cluster.resources import NODES, PODS, Selection
from colocate.cluster.watch_cache import WatchCache
from colocate.crashpoints import reached
from colocate.errors import UserError
from colocate.gpus import (
    ANNOUNCED,
    AnnouncedPod,
    Dialect,
    GpuAnnouncement,
    GpuPod,
    announced,
    announcement_of,
)
from colocate.gpus.agent.monitor import GpuMonitor
from colocate.gpus.agent.standing import NodeStanding
from colocate.model.gpu import CORES, GpuInventory
from colocate.model.path_word import is_path_word
from colocate.telemetry import GPU_ANNOUNCEMENTS, Event

COMPONENT = "colocate-gpus"
UNHEALTHY = "GpuUnhealthy"
HEALTHY = "GpuHealthy"
"""Reasons of events."""

_RETRY = 5.0
_LAST_RETRY = 60.0
_ATTEMPTS = 4
_ASKING = 5.0
"""Seconds for a question that a person waits for."""
_LEAST_GAP = 1.0
"""Seconds between two writes: what changes in between is written at once."""


class _Capacity(msgspec.Struct, frozen=True):
    capacity: Mapping[str, str] = {}


class _Marks(msgspec.Struct, frozen=True):
    annotations: Mapping[str, str] = {}


class _CountedNode(msgspec.Struct, frozen=True):
    """As much of a node as is compared."""

    metadata: _Marks = _Marks()
    status: _Capacity = _Capacity()


def node_counts(inventory: GpuInventory, dialects: Sequence[Dialect]) -> Mapping[str, int]:
    """What the node's status says in every dialect: GPUs that new pods may get, and their cores."""
    fit = sum(gpu.healthy for gpu in inventory.shared)
    counts = {dialect.count: fit for dialect in dialects if dialect.count}
    return counts | {dialect.cores: fit * CORES for dialect in dialects if dialect.cores}


class GpuNodeCounts:
    """Keeps the numbers of one node."""

    def __init__(
        self,
        client: Client,
        node: str,
        dialects: Sequence[Dialect],
        monitor: GpuMonitor,
        standing: NodeStanding | None = None,
    ) -> None:
        self.trouble = "the API server has not answered yet"
        """Why the numbers may be wrong; empty where they are right."""
        self.client = client
        self._clock = client.clock
        self._node = node
        self._dialects = dialects
        self._monitor = monitor
        self._standing = standing or NodeStanding()
        self._last: GpuAnnouncement | None = None
        """What the node said when the agent started."""
        self._nodes = WatchCache(
            client, NODES.read_as(_CountedNode), Selection(fields=f"metadata.name={node}")
        )
        self._events = EventRecorder(client, COMPONENT, node)
        self._log = telemetry.logger()

    async def run(self) -> None:
        """Keep them until cancelled."""
        await first(self._nodes.run(), self._keep(), self._events.run(), self._tell())

    async def waiting_pod(self, key: str) -> GpuPod | None:
        """The pod of that name that has no node yet; None where there is none, or the API server does not say."""
        namespace, _, name = key.partition("/")
        if not is_path_word(namespace) or not is_path_word(name):
            return None
        selection = Selection(namespace, fields=f"metadata.name={name},spec.nodeName=")
        try:
            async with deadline(self._clock, _ASKING):
                found = await self.client.list(PODS.read_as(GpuPod), selection)
        except (ClusterError, UserError, TimeoutError):
            return None
        return found[0] if found else None

    async def _tell(self) -> None:
        """An event of the node whenever a GPU falls ill or is well again."""
        # `kubectl describe node` asks by the node's name in place of its uid, as kubelets write it.
        about = Reference("Node", self._node, uid=self._node)
        troubles: dict[str, str] = {}
        await self._monitor.ready()
        while True:
            seen = self._monitor.changed.count
            now = {gpu.uuid: gpu.trouble for gpu in self._monitor.inventory.shared}
            for uuid, trouble in now.items():
                if trouble and not troubles.get(uuid):
                    message = f"GPU {uuid} is given to no new pod: {trouble}"
                    self._events.record(about, UNHEALTHY, message, EventType.WARNING)
                elif troubles.get(uuid) and not trouble:
                    self._events.record(about, HEALTHY, f"GPU {uuid} is healthy again", EventType.NORMAL)
            troubles = now
            await self._monitor.changed.beyond(seen)

    async def withdraw(self, seconds: float) -> None:
        """Remove the counts, within so many seconds: no agent serves them any more."""
        try:
            async with deadline(self._clock, seconds):
                text = self._last_words()
                await self._set(dict.fromkeys(node_counts(GpuInventory(), self._dialects)), text)
        except (ClusterError, UserError, TimeoutError) as error:
            self._log.warning(
                Event.GPU_COUNTS_UNSET,
                node=self._node,
                reason=str(error) or f"no answer within {seconds:g} s",
                effect="the node still shows them; 'colocate resource remove' takes them away",
            )

    def _last_words(self) -> str | None:
        """The annotation without any GPU on offer; None where no pod has any."""
        if not self._pods_to_tell():
            return None
        gpus = tuple(msgspec.structs.replace(gpu, healthy=False) for gpu in self._monitor.inventory.gpus)
        return self._text(GpuInventory(gpus))

    async def _keep(self) -> None:
        await self._nodes.synced()
        self._recall()
        await self._monitor.ready()
        pause = _RETRY
        while True:
            gpus, node = self._monitor.changed.count, self._nodes.changed.count
            standing = self._standing.changed.count
            try:
                written = await self._put_right()
            except (ClusterError, UserError) as error:
                if str(error) != self.trouble:
                    self._log.warning(
                        Event.GPU_COUNTS_UNSET, node=self._node, reason=str(error), retry_in=pause
                    )
                self.trouble = str(error)
                await self._clock.sleep(pause * (1 + random.random()))
                pause = min(2 * pause, _LAST_RETRY)
                continue
            self.trouble, pause = "", _RETRY
            if written:
                await self._clock.sleep(_LEAST_GAP)
            await first(
                self._monitor.changed.beyond(gpus),
                self._nodes.changed.beyond(node),
                self._standing.changed.beyond(standing),
            )

    def _recall(self) -> None:
        """Find what an earlier life has announced."""
        node = next(iter(self._nodes), None)
        try:
            self._last = announced(node.metadata.annotations) if node is not None else None
        except ValueError as error:
            self._log.warning(Event.GPU_COUNTS_UNSET, node=self._node, reason=str(error))
        self._standing.recall(self._last)

    def _pods_to_tell(self) -> Mapping[str, AnnouncedPod] | None:
        """What was announced before, until the pods are settled; None where that is unknown."""
        if self._standing.pods is None:
            return self._last.pods if self._last is not None else None
        return self._standing.pods

    def _text(self, inventory: GpuInventory) -> str:
        units = {dialect.memory: dialect.unit for dialect in self._dialects if not dialect.drains}
        pods = self._pods_to_tell()
        absent = [uid for uid in self._standing.absent if uid not in (pods or {})]
        before = self._last if self._last is not None and self._standing.pods is None else GpuAnnouncement()
        return announcement_of(inventory, units, pods, absent, before.rest, before.unnamed)

    async def _put_right(self) -> bool:
        """Whether anything was to be written."""
        wanted = node_counts(self._monitor.inventory, self._dialects)
        text, pods = self._text(self._monitor.inventory), self._standing.pods
        node = next(iter(self._nodes), None)
        if node is None:
            raise UserError(
                f"there is no node {self._node}; set gpus.node to this node's name in the cluster"
            )
        differ = any(node.status.capacity.get(name) != str(count) for name, count in wanted.items())
        differ = differ or node.metadata.annotations.get(ANNOUNCED) != text
        if differ:
            await self._set(wanted, text)
            GPU_ANNOUNCEMENTS.inc()
        if pods is not None:
            self._standing.tell(pods)
        return differ

    async def _set(self, wanted: Mapping[str, int | None], text: str | None) -> None:
        reached("gpus.node_counts")
        done = await self._patched(wanted, text)
        reached("gpus.node_counted")
        if done:
            told = self._log.info if len(done) > 1 or text is None else self._log.debug
            told(Event.GPU_COUNTS_SET, node=self._node, counts=dict(wanted))

    async def _patched(self, wanted: Mapping[str, int | None], text: str | None) -> Patch:
        """Patch the node; try again where the kubelet wrote to it first."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return await self._patch(wanted, text)
            except PreconditionFailed:
                continue
        return await self._patch(wanted, text)

    async def _patch(self, wanted: Mapping[str, int | None], text: str | None) -> Patch:
        return await set_extended_resources(self.client, self._node, wanted, annotations={ANNOUNCED: text})
