"""Keeps the table of loads in step with the cluster and with the samples. Decides nothing.

Nodes and pods come from watch caches, which survive failures of the API server; samples from the poller, which
survives failures of Prometheus. All facts enter the table in one event loop, so that no answer sees half of them.
Samples enter step by step, beside the round that answers requests, so that no request waits for them.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import NoReturn

import msgspec

from colocate.aio import Watched
from colocate.clock import Clock
from colocate.cluster.changes import Added, Change, Deleted, Key, Modified
from colocate.cluster.client import Client
from colocate.cluster.resources import NODES, PODS, UNFINISHED
from colocate.cluster.usage import KnownNode, UsagePoller
from colocate.cluster.watch_cache import WatchCache
from colocate.load import LoadNode, LoadNodeStatus, LoadPod, LoadTable, bound_pod, node_facts
from colocate.model.load import BoundPod, PodFacts, PodUsage
from colocate.scheduler.loop.decision_log import DecisionLog
from colocate.scheduler.loop.strict_cpus import StrictByDefault

_STEP = 1000
"""Pods that one step of joining looks at: a few milliseconds."""
_CLOCKS_AGREE = 2.0
"""Seconds by which a correct clock may seem to differ: the API tells it in whole seconds."""


class _Address(msgspec.Struct, frozen=True):
    address: str = ""


class _Status(LoadNodeStatus, frozen=True):
    addresses: tuple[_Address, ...] = ()


class WatchedNode(LoadNode, frozen=True):
    """A node, as much of it as is judged, joined with samples, or tainted."""

    status: _Status = _Status()

    @property
    def known(self) -> KnownNode:
        facts = node_facts(self)
        addresses = tuple(one.address for one in self.status.addresses if one.address)
        return KnownNode(facts.name, addresses, facts.capacity)


class TableFeed:
    """The cluster as the table knows it."""

    def __init__(self, table: LoadTable, decisions: DecisionLog, client: Client, clock: Clock) -> None:
        self.table = table
        self._decisions = decisions
        self._client = client
        self._clock = clock
        self.nodes: WatchCache[WatchedNode] = WatchCache(client, NODES.read_as(WatchedNode))
        self.pods: WatchCache[LoadPod] = WatchCache(client, PODS.read_as(LoadPod), UNFINISHED)
        self.nodes.add_handler(self._node_changed)
        self.pods.add_handler(self._pod_changed)
        self.strict_by_default = StrictByDefault()
        self.sampled = Watched()
        """Counts the rounds of samples that the table has."""
        # The table needs the time first: a pod that was bound long ago must not look new.
        table.advance(clock.time())

    def known_nodes(self) -> Iterable[KnownNode]:
        return [node.known for node in self.nodes]

    def free_ccxs(self, node: str) -> str:
        """The annotation of a node about its free CCXs; empty where it has none."""
        known = self.nodes.get(Key("", node))
        return "" if known is None else known.metadata.annotations.free_ccxs

    def shows(self, pod: PodFacts) -> bool:
        """Whether the API server has shown this pod, by uid."""
        namespace, _, name = pod.key.partition("/")
        known = self.pods.get(Key(namespace, name))
        return known is not None and known.metadata.uid == pod.uid

    async def synced(self) -> None:
        """Return once all nodes and pods are in the table."""
        await asyncio.gather(self.nodes.synced(), self.pods.synced())

    async def follow(self, poller: UsagePoller) -> NoReturn:
        """Enter every round of samples."""
        seen = 0
        while True:
            seen = await poller.changed.beyond(seen)
            latest = poller.latest
            usages = await self._by_uid(latest.pods) if latest.pods or self.table.pods.usages else None
            for _ in self.table.observing(latest.nodes, self._clock.time(), usages):
                # Let requests go first; they are answered from the round before.
                await asyncio.sleep(0)
            self.sampled.changed()

    async def _by_uid(self, usages: Mapping[str, PodUsage]) -> dict[str, PodUsage]:
        """Pod samples by uid, for pods that are bound now; expired ones are left out. Whether a pod is prod comes
        from its class."""
        found = {}
        staleness, now = self.table.settings.staleness, self._clock.time()
        for number, (name, usage) in enumerate(usages.items()):
            if number % _STEP == 0:
                # Let requests go first.
                await asyncio.sleep(0)
            pod = self.pods.get(Key(*name.split("/", 1)))
            bound = None if pod is None else self.table.pods.get(pod.metadata.uid)
            if bound is not None and not staleness.expired(now - usage.time):
                found[bound.pod.uid] = PodUsage(usage.amount, usage.time, bound.pod.prod)
        return found

    def _node_changed(self, change: Change[WatchedNode]) -> None:
        self.table.advance(self._clock.time())
        match change:
            case Deleted(key=key):
                self.table.remove_node(key.name)
                self.strict_by_default.tell(key.name, "")
            case Added(new=node) | Modified(new=node):
                self.strict_by_default.tell(node.metadata.name, node.metadata.annotations.free_ccxs)
                self.table.add_nodes([node_facts(node, self._ahead)])

    def _pod_changed(self, change: Change[LoadPod]) -> None:
        now = self._clock.time()
        self.table.advance(now)
        match change:
            case Deleted(last=pod):
                self.table.end(pod.metadata.uid)
                return
            case Modified(old=old, new=pod):
                if old.metadata.uid != pod.metadata.uid:
                    # The watch missed the end of the old pod of this name.
                    self.table.end(old.metadata.uid)
            case Added(new=pod):
                pass
        bound = self._bound(pod, now)
        if bound is not None:
            self.table.bind(bound)
            self._decisions.bound(bound)
        elif pod.ended:
            self.table.end(pod.metadata.uid)

    def _bound(self, pod: LoadPod, now: float) -> BoundPod | None:
        """The pod on its node. A binding that this process saw happen counts from then; the API's clock, which may
        differ from ours, counts only for pods that were bound before."""
        bound = bound_pod(pod, now, self._ahead)
        if bound is None:
            return None
        before = self.table.pods.get(bound.pod.uid)
        if before is not None and before.node == bound.node:
            return BoundPod(bound.pod, bound.node, min(now, before.bound_at))
        return BoundPod(bound.pod, bound.node, now) if self.pods.health.synced else bound

    @property
    def _ahead(self) -> float:
        """Seconds by which the API's clock is ahead of ours."""
        offset = self._client.clock_offset or 0.0
        return offset if abs(offset) > _CLOCKS_AGREE else 0.0
