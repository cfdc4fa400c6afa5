"""Keeps the book in step with the cluster: nodes with the GPUs that their agents announce, and all pods.

The watch caches survive whatever the API server does; after a gap they compare and tell what was missed, so that the
book is the API's again. Decides nothing.
"""

import asyncio
from collections.abc import Sequence

from colocate.aio import first
from colocate.cluster.changes import Added, Change, Deleted, Key, Modified
from colocate.cluster.client import Client
from colocate.cluster.resources import NODES, PODS, UNFINISHED
from colocate.cluster.watch_cache import WatchCache
from colocate.gpus.packing.cluster_book import ClusterBook
from colocate.gpus.packing.objects import PackedNode, PackedPod


class GpuFeed:
    """The cluster as the book knows it. See `judge.GpuCluster`."""

    def __init__(self, book: ClusterBook, client: Client) -> None:
        self.book = book
        self._clock = client.clock
        self.nodes: WatchCache[PackedNode] = WatchCache(client, NODES.read_as(PackedNode))
        self.pods: WatchCache[PackedPod] = WatchCache(client, PODS.read_as(PackedPod), UNFINISHED)
        self.nodes.add_handler(self._node_changed)
        self.pods.add_handler(self._pod_changed)

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.nodes.run())
            group.create_task(self.pods.run())

    async def synced(self) -> None:
        await asyncio.gather(self.nodes.synced(), self.pods.synced())

    async def news(self, seconds: float) -> bool:
        """Wait for a change of nodes or pods, for so long; whether there was one."""
        nodes, pods = self.nodes.changed.count, self.pods.changed.count
        await first(
            self.nodes.changed.beyond(nodes), self.pods.changed.beyond(pods), self._clock.sleep(seconds)
        )
        return (nodes, pods) != (self.nodes.changed.count, self.pods.changed.count)

    def pod(self, namespace: str, name: str, uid: str) -> PackedPod | None:
        """The pod of that name and uid, where the API server has shown it."""
        found = self.pods.get(Key(namespace, name))
        return found if found is not None and found.uid == uid else None

    def shows(self, pod: PackedPod) -> bool:
        return self.pod(pod.metadata.namespace, pod.metadata.name, pod.uid) is not None

    def unready(self) -> Sequence[str]:
        return [
            f"the GPU scheduler has not read all {name} of the cluster yet{f': {why}' if why else ''}"
            for name, synced, why in (
                ("nodes", self.nodes.health.synced, self.nodes.health.last_error),
                ("pods", self.pods.health.synced, self.pods.health.last_error),
            )
            if not synced
        ]

    def _node_changed(self, change: Change[PackedNode]) -> None:
        match change:
            case Deleted(key=key):
                self.book.remove_node(key.name)
            case Modified(old=old, new=node):
                if old != node:
                    self.book.put_node(node)
            case Added(new=node):
                self.book.put_node(node)

    def _pod_changed(self, change: Change[PackedPod]) -> None:
        match change:
            case Deleted(last=pod):
                self.book.remove_pod(pod.uid)
                return
            case Modified(old=old, new=pod):
                if old.uid != pod.uid:
                    # One of the same name came in its place, unseen.
                    self.book.remove_pod(old.uid)
            case Added(new=pod):
                pass
        self.book.put_pod(pod)
