"""Reads the extended resources of nodes from the API and, for this machine, from its kubelet.

Needs the rights to `get` or `list` nodes and to `list` pods. To know whether a node is this machine it compares all
nodes: without the right to `list` nodes it leaves out what the kubelet says.
"""

from collections.abc import Mapping
from datetime import datetime

import msgspec

from colocate.clock import Clock
from colocate.cluster.client import Client
from colocate.cluster.errors import Forbidden, NotFound
from colocate.cluster.resources import NODES, PODS, UNFINISHED, Object, Selection
from colocate.devices.extended_resources import Before, ExtendedResource, judge
from colocate.devices.node_facts import KubeletFacts, NodeRecords, Writer
from colocate.devices.requests import RequestingPod
from colocate.devices.resources.local_kubelet import LocalKubelet, NodeIdentity, _NodeMarks
from colocate.errors import UserError

_UNFINISHED = UNFINISHED.fields
_SHOWN_BY = "'colocate resource list' shows the nodes"
_READY = "Ready"
_READY_FIELDS = 'k:{"type":"Ready"}'


class NoNode(UserError):
    """The cluster has no node with that name."""


class _Camel(msgspec.Struct, frozen=True, rename="camel"):
    pass


class _StatusFields(msgspec.Struct, frozen=True, rename=lambda name: f"f:{name}"):
    capacity: dict[str, object] = {}
    conditions: dict[str, dict[str, object]] = {}


class _Fields(msgspec.Struct, frozen=True, rename=lambda name: f"f:{name}"):
    status: _StatusFields | None = None


class _Entry(msgspec.Struct, frozen=True):
    manager: str = ""
    time: str = ""
    fields: _Fields = msgspec.field(default=_Fields(), name="fieldsV1")


class _Marks(_Camel, frozen=True):
    name: str
    resource_version: str = ""
    managed_fields: tuple[_Entry, ...] | None = None


class _Condition(_Camel, frozen=True):
    type: str
    status: str = ""
    last_heartbeat_time: str | None = None


class _Address(_Camel, frozen=True):
    type: str
    address: str = ""


class _Status(_Camel, frozen=True):
    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    conditions: tuple[_Condition, ...] = ()
    addresses: tuple[_Address, ...] = ()
    node_info: NodeIdentity = NodeIdentity()


class _Node(_Camel, frozen=True):
    metadata: _Marks
    status: _Status = _Status()

    def marks(self) -> _NodeMarks:
        hostname = next((one.address for one in self.status.addresses if one.type == "Hostname"), "")
        return _NodeMarks(self.metadata.name, hostname, self.status.node_info)


class ResourceLook(msgspec.Struct, frozen=True):
    """One node and its extended resources at one moment."""

    node: NodeRecords
    version: str
    resources: tuple[ExtendedResource, ...]

    def find(self, name: str) -> ExtendedResource | None:
        return next((one for one in self.resources if one.name == name), None)

    def document(self) -> Object:
        """The fields of the node that a patch of its capacity needs."""
        return {
            "metadata": {"resourceVersion": self.version},
            "status": {"capacity": dict(self.node.capacity)},
        }


class ResourceObserver:
    """Reads nodes and judges their extended resources."""

    def __init__(
        self, client: Client, kubelet: LocalKubelet, clock: Clock, beside: Mapping[str, str] | None = None
    ) -> None:
        """`beside`: by name, resources that an agent writes beside the one that its plugin registers."""
        self._client = client
        self._kubelet = kubelet
        self._clock = clock
        self._beside = beside or {}
        self._all: list[_NodeMarks] | None = None
        """Every node; read once, when a node may be this machine."""

    async def node(self, name: str, before: Mapping[str, Before] | None = None) -> ResourceLook:
        """One node; NoNode if it does not exist."""
        if not name:
            raise NoNode(f"the name of the node is empty; {_SHOWN_BY}")
        try:
            found = await self._client.get(NODES.read_as(_Node), name)
        except NotFound:
            raise NoNode(f"there is no node {name!r}; {_SHOWN_BY}") from None
        pods = await self._pods(f"spec.nodeName={name},{_UNFINISHED}")
        return await self._judged(found, pods, before, here=await self._is_here(found.marks()))

    async def all_nodes(self, before: Mapping[str, Mapping[str, Before]] | None = None) -> list[ResourceLook]:
        """Every node, by name; `before` by node."""
        found = await self._client.list(NODES.read_as(_Node))
        here = self._kubelet.which(node.marks() for node in found)
        by_node: dict[str, list[RequestingPod]] = {}
        for pod in await self._pods(_UNFINISHED):
            by_node.setdefault(pod.spec.node_name, []).append(pod)
        known = before or {}
        return [
            await self._judged(node, by_node.get(name, []), known.get(name), here=name == here)
            for name, node in sorted({node.metadata.name: node for node in found}.items())
        ]

    async def _pods(self, fields: str) -> list[RequestingPod]:
        return await self._client.list(PODS.read_as(RequestingPod), Selection(fields=fields))

    async def _is_here(self, node: _NodeMarks) -> bool:
        if not self._kubelet.may_be_of(node):
            return False
        if self._kubelet.is_surely_of(node):
            return True
        if self._all is None:
            try:
                self._all = [one.marks() for one in await self._client.list(NODES.read_as(_Node))]
            except Forbidden:
                self._all = []
        return self._kubelet.which(self._all) == node.name

    async def _judged(
        self, node: _Node, pods: list[RequestingPod], before: Mapping[str, Before] | None, *, here: bool
    ) -> ResourceLook:
        kubelet = await self._kubelet.facts() if here else KubeletFacts()
        facts = _facts(node, kubelet, self._beside)
        judged = judge(facts, pods, self._clock.time(), before)
        return ResourceLook(facts, node.metadata.resource_version, tuple(judged))


def _facts(node: _Node, kubelet: KubeletFacts, beside: Mapping[str, str]) -> NodeRecords:
    ready = next((one for one in node.status.conditions if one.type == _READY), None)
    entries = node.metadata.managed_fields
    return NodeRecords(
        name=node.metadata.name,
        capacity=node.status.capacity,
        allocatable=node.status.allocatable,
        writers=None if entries is None else tuple(_writer(one) for one in entries if one.fields.status),
        heartbeat=_moment(ready.last_heartbeat_time) if ready else None,
        silent=ready is None or ready.status == "Unknown",
        kubelet=kubelet,
        beside=beside,
    )


def _writer(entry: _Entry) -> Writer:
    fields = entry.fields.status or _StatusFields()
    return Writer(
        entry.manager,
        _moment(entry.time),
        frozenset(key.removeprefix("f:") for key in fields.capacity),
        "f:lastHeartbeatTime" in fields.conditions.get(_READY_FIELDS, {}),
    )


def _moment(text: str | None) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None
