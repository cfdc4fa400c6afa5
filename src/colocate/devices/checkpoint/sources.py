"""Reads the other records of which pod holds which device: podresources, the API's pods and the node status.

A source that does not answer is left out, with the reason; only a cluster that the user named must answer.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from colocate.clock import Clock
from colocate.cluster.client import Client, ClientSettings
from colocate.cluster.connection import Connection
from colocate.cluster.errors import ClusterError, NotFound
from colocate.cluster.resources import NODES, PODS, on_node
from colocate.errors import Unavailable, UserError
from colocate.host.identity import this_node
from colocate.kubelet.paths import KubeletPaths
from colocate.kubelet.podresources import healthy_devices, listed_pods
from colocate.model import quantity
from colocate.model.pod import Pod
from colocate.model.records import KnownPod, NodeCounts, Records
from colocate.model.resource_name import is_extended

T = TypeVar("T")

_MIRROR = "kubernetes.io/config.mirror"
"""Annotation of a static pod's mirror: the uid by which the kubelet knows the pod. Any writer of pods can set it."""

_SETTINGS = ClientSettings(timeout=5.0, list_timeout=30.0, attempts=2)


class AskedRecords(msgspec.Struct, frozen=True):
    """What the sources answered, and why the others did not."""

    records: Records
    silent: Sequence[str] = ()
    """A sentence for each source that did not answer."""


class ClusterRecords(msgspec.Struct, frozen=True):
    """Where to ask the API, and about which node."""

    connect: Callable[[], Connection]
    """Opens the connection; UserError if no cluster is configured."""
    is_stated: bool = False
    """The user named the cluster or one of its nodes: a failure is a UserError."""
    node: str = ""
    """The node to ask about; this machine's if empty."""

    @property
    def node_name(self) -> str:
        return self.node or this_node()


async def ask_for_names(paths: KubeletPaths | None, cluster: ClusterRecords, clock: Clock) -> AskedRecords:
    """Ask for the names of pods; without `paths` the file is from another machine, and only the API is asked."""
    silent: list[str] = []
    listing = None
    if paths is not None:
        try:
            listing = await listed_pods(paths, clock)
        except Unavailable as error:
            silent.append(str(error))
    asked = await ask_for_pods(paths is not None, cluster, clock)
    return AskedRecords(Records(listing=listing, pods=asked.records.pods), [*silent, *asked.silent])


async def ask_for_pods(is_own: bool, cluster: ClusterRecords, clock: Clock) -> AskedRecords:
    """Ask the API for the pods of the node; `is_own`: the file is of this machine's kubelet."""
    node, silent = cluster.node_name, list[str]()
    pods = await _ask_api(cluster, clock, silent, lambda client: _pods_of_a_node(client, node))
    if pods is not None and not is_own and not cluster.node:
        silent.append(f"the API: only pods of {node} were asked for; give the node of the file with --node")
    return AskedRecords(Records(pods=pods), silent)


async def ask_everything(paths: KubeletPaths | None, cluster: ClusterRecords, clock: Clock) -> AskedRecords:
    """Ask every source once. About a file of another machine only the API is asked, and only if its node is known."""
    if paths is None:
        silent = ["podresources: the file does not belong to this machine's kubelet"]
        listing = healthy = None
        if not cluster.node:
            silent.append("the API: give the node of the file with --node")
            return AskedRecords(Records(), silent)
    else:
        silent = []
        try:
            listing, healthy = await listed_pods(paths, clock), await healthy_devices(paths, clock)
        except Unavailable as error:
            silent.append(str(error))
            listing = healthy = None
    # The node first: the pods of a missing node are an empty list, and every entry would look stale.
    node = await _ask_api(cluster, clock, silent, lambda client: _node(client, cluster.node_name))
    pods = None
    if node is not None:
        pods = await _ask_api(cluster, clock, silent, lambda client: _pods(client, cluster.node_name))
    return AskedRecords(Records(listing, healthy, pods, node), silent)


async def _ask_api(
    cluster: ClusterRecords, clock: Clock, silent: list[str], question: Callable[[Client], Awaitable[T]]
) -> T | None:
    try:
        async with Client(cluster.connect(), clock, _SETTINGS) as client:
            return await question(client)
    except (ClusterError, UserError) as error:
        if cluster.is_stated:
            # The user can correct it; without the API the question cannot be answered.
            raise UserError(str(error)) from error
        silent.append(f"the API: {error}")
        return None


# The fields of the API's objects that are read ------------------------------------------------------


class _Status(msgspec.Struct, frozen=True):
    phase: str = ""


class _Pod(Pod, frozen=True):
    status: _Status = _Status()


class _NodeStatus(msgspec.Struct, frozen=True):
    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}


class _Node(msgspec.Struct, frozen=True):
    status: _NodeStatus = _NodeStatus()


async def _node(client: Client, name: str) -> NodeCounts:
    try:
        found = await client.get(NODES.read_as(_Node), name)
    except NotFound as error:
        raise UserError(f"the cluster has no node {name!r}; give this machine's node with --node") from error
    return NodeCounts(_extended(found.status.capacity), _extended(found.status.allocatable))


async def _pods(client: Client, node: str) -> tuple[KnownPod, ...]:
    return tuple(map(_known, await client.list(PODS.read_as(_Pod), on_node(node))))


async def _pods_of_a_node(client: Client, node: str) -> tuple[KnownPod, ...]:
    """The pods of a node; UserError if the node does not exist, for which the API returns an empty list."""
    pods = await _pods(client, node)
    if not pods:
        await _node(client, node)
    return pods


def _known(pod: _Pod) -> KnownPod:
    lasting = [container for container in pod.spec.init_containers if container.is_sidecar]
    return KnownPod(
        pod.uid,
        pod.metadata.namespace,
        pod.metadata.name,
        pod.status.phase,
        {container.name: container.devices() for container in (*lasting, *pod.spec.containers)},
        pod.metadata.annotations.get(_MIRROR, ""),
    )


def _extended(counts: Mapping[str, str]) -> Mapping[str, int]:
    return {name: quantity.whole(count) for name, count in counts.items() if is_extended(name)}
