"""What the API server says of this node: its pods, its Node object, its kubelet's reserves. Also records events.

Everything is the last answer. While the API server is away the last answer stays, and `answers` is false.
"""

import asyncio
from contextlib import suppress

import msgspec

from colocate.aio import deadline
from colocate.cluster.client import Client
from colocate.cluster.errors import ClusterError, Doing, unreadable
from colocate.cluster.events import EventRecorder, EventType, Reference
from colocate.cluster.resources import NODES, PODS, Selection, unfinished_on
from colocate.cluster.transport import Request
from colocate.cluster.watch_cache import WatchCache, WatchSettings
from colocate.errors import UserError
from colocate.memory import PodRef
from colocate.memory.agent.namespace_rights import NamespaceRights
from colocate.memory.agent.objects import ApiNode, ApiPod, Configz, KubeletConfig
from colocate.memory.agent.roster import roster
from colocate.model.holdings import Holding
from colocate.model.memory import PodIdentity

COMPONENT = "colocate-memory"
_RESERVES_AGAIN = 600.0
"""Seconds between two questions for the kubelet's configuration."""


class ClusterView:
    """Follows one node of a cluster."""

    def __init__(self, client: Client, node: str) -> None:
        self.client = client
        self.node_name = node
        self._clock = client.clock
        self._pods = WatchCache(
            client, PODS.read_as(ApiPod), unfinished_on(node), WatchSettings(from_server_cache=True)
        )
        self._nodes = WatchCache(client, NODES.read_as(ApiNode), Selection(fields=f"metadata.name={node}"))
        self._events = EventRecorder(client, COMPONENT, node)
        self.rights = NamespaceRights(client)
        self.kubelet: KubeletConfig | None = None
        """The kubelet's own configuration, where this identity may ask for it."""
        self.kubelet_silent = "not asked yet"
        """Why `kubelet` is None; empty where it is not."""

    async def run(self) -> None:
        """Watch until cancelled; errors of the server do not end it."""
        async with asyncio.TaskGroup() as group:
            for work in (self._pods.run(), self._nodes.run(), self._events.run(), self._ask_for_reserves()):
                group.create_task(work)
            group.create_task(self.rights.run())

    async def synced(self, seconds: float) -> bool:
        """Wait up to `seconds` for the first answers; whether they came."""
        with suppress(TimeoutError):
            async with deadline(self._clock, seconds):
                await asyncio.gather(self._pods.synced(), self._nodes.synced())
        return self.is_synced

    @property
    def is_synced(self) -> bool:
        """Whether the pods and the node have been read once: until then, an empty list means unknown."""
        return self._pods.health.synced and self._nodes.health.synced

    @property
    def answers(self) -> bool:
        """Whether the last requests to the API server succeeded."""
        return self.is_synced and not self._pods.health.last_error and not self._nodes.health.last_error

    @property
    def trouble(self) -> str:
        """Why the API server does not answer; empty where it does."""
        if self.answers:
            return ""
        return self._pods.health.last_error or self._nodes.health.last_error or "it has not answered yet"

    @property
    def pods(self) -> list[ApiPod]:
        return list(self._pods)

    @property
    def node(self) -> ApiNode | None:
        return next(iter(self._nodes), None)

    def pod(self, pod: PodRef) -> ApiPod | None:
        """The pod with this uid, or the mirror of the static pod with this uid and name."""
        pods = self.pods
        found = [each for each in pods if each.uid == pod.uid]
        found += [each for each in pods if each.claimed_uid == pod.uid and each.key == str(pod)]
        return found[0] if found else None

    async def until_pod(self, holding: Holding, resource: str, seconds: float) -> PodIdentity | None:
        """The pod of a holding, once the watch has it: by uid, or by name where the uid is unknown."""
        with suppress(TimeoutError):
            async with deadline(self._clock, seconds):
                while True:
                    seen = self._pods.changed.count
                    known = roster(self.pods, holding.proven, {holding.uid})
                    for pod in known.identities(resource):
                        # By name alone, a pod that is ending is not the one that starts.
                        named = not holding.uid and pod.key == holding.key and not pod.terminating
                        if pod.uid == holding.uid or named:
                            return pod
                    await self._pods.changed.beyond(seen)
        return None

    def tell_pod(self, pod: PodRef, reason: str, message: str, *, warning: bool = False) -> None:
        """Record an event on a pod; a pod without a name gets none."""
        if pod.name:
            about = Reference("Pod", pod.name, pod.namespace, pod.uid)
            self._events.record(about, reason, message, _type(warning))

    def tell_node(self, reason: str, message: str, *, warning: bool = False) -> None:
        # `kubectl describe node` asks by the node's name in place of its uid, as kubelets write it.
        about = Reference("Node", self.node_name, uid=self.node_name)
        self._events.record(about, reason, message, _type(warning))

    async def close(self, seconds: float) -> None:
        """Send waiting events, for up to `seconds`, and close the client."""
        if self.answers:
            with suppress(TimeoutError):
                async with deadline(self._clock, seconds):
                    await self._events.flush()
        await self.client.close()

    async def _ask_for_reserves(self) -> None:
        while True:
            await self._nodes.synced()
            try:
                self.kubelet = await ask_configz(self.client, self.node_name)
                self.kubelet_silent = ""
            except (ClusterError, UserError) as error:
                self.kubelet_silent = str(error)
            await self._clock.sleep(_RESERVES_AGAIN)


async def ask_configz(client: Client, node: str) -> KubeletConfig:
    """The configuration of a node's kubelet; needs the verb get on nodes/proxy."""
    path = f"{NODES.path(name=node, subresource='proxy')}/configz"
    doing = Doing("get", "nodes/proxy", name=node)
    answer = await client.ask_once(Request(doing, "GET", path))
    try:
        return msgspec.json.decode(answer, type=Configz).kubeletconfig
    except ValueError as error:
        raise unreadable(doing, str(error)) from error


def _type(warning: bool) -> EventType:
    return EventType.WARNING if warning else EventType.NORMAL
