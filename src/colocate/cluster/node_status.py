"""Sets and removes extended resources in a node's status, and annotations beside them.

A kubelet keeps a resource in its node's capacity, at 0, as long as it knows the device plugin; a resource that was
patched in by hand stays forever. The patches here change only the number that was seen, and only in capacity: the
kubelet updates allocatable with its next sync.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from colocate.cluster import json_patch
from colocate.cluster.client import Client
from colocate.cluster.errors import ClusterError
from colocate.cluster.json_patch import Patch
from colocate.cluster.resources import NODES, Object, Selection
from colocate.errors import Unavailable, UserError
from colocate.model.device_cost import NodeKubelet, kubelet_version

_LONGEST_NODE = 16 << 20
"""Bytes of the answer that holds one node."""


class _NodeShape(msgspec.Struct, frozen=True):
    """The parts of a node that a patch of its status tests."""

    metadata: dict[str, object]
    status: dict[str, object] = {}

    def document(self) -> Object:
        return {"metadata": self.metadata, "status": self.status}


def patch_for(
    seen: Mapping[str, object],
    wanted: Mapping[str, int | None],
    annotations: Mapping[str, str | None] | None = None,
) -> Patch:
    """The patch that sets capacities to counts, and annotations to texts; None removes one.

    Empty where nothing has to change.
    """
    node: object = seen
    patch: Patch = ()
    for key, text in sorted((annotations or {}).items()):
        step = json_patch.set_value(_mapping(node), ("metadata", "annotations", key), text)
        node = json_patch.apply(node, step)
        patch += step
    for resource, count in sorted(wanted.items()):
        if "/" not in resource:
            raise ValueError(
                f"{resource!r} is not an extended resource: cpu, memory and the like belong to the kubelet"
            )
        value = None if count is None else str(count)
        step = json_patch.set_value(_mapping(node), ("status", "capacity", resource), value)
        # The next step applies to the result of this one.
        node = json_patch.apply(node, step)
        patch += step
    return patch


def _mapping(document: object) -> Mapping[str, object]:
    assert isinstance(document, Mapping)
    return document


async def set_extended_resources(
    client: Client,
    node: str,
    wanted: Mapping[str, int | None],
    dry_run: bool = False,
    *,
    annotations: Mapping[str, str | None] | None = None,
) -> Patch:
    """Set a node's extended resources to counts, and annotations to texts; returns the patch.

    It patches the node's status, as kubelets do for annotations: no right to the node itself is needed.

    PreconditionFailed where they have changed since they were read: read again.
    """
    seen = await client.get(NODES.read_as(_NodeShape), node)
    patch = patch_for(seen.document(), wanted, annotations)
    if patch:
        await client.patch(NODES, node, patch, subresource="status", dry_run=dry_run)
    return patch


class _Condition(msgspec.Struct, frozen=True, rename="camel"):
    last_heartbeat_time: datetime | None = None


class _NodeInfo(msgspec.Struct, frozen=True, rename="camel"):
    kubelet_version: str = ""


class _KubeletStatus(msgspec.Struct, frozen=True, rename="camel"):
    node_info: _NodeInfo = _NodeInfo()
    conditions: Sequence[_Condition] = ()


class _KubeletNode(msgspec.Struct, frozen=True):
    status: _KubeletStatus = _KubeletStatus()


async def node_kubelet(client: Client, node: str) -> NodeKubelet | None:
    """What a node's status says of its kubelet now; None where there is no such node.

    Unavailable where the server does not say.
    """
    selection = Selection(fields=f"metadata.name={node}")
    try:
        found = await client.list_now(NODES.read_as(_KubeletNode), selection, most=8, longest=_LONGEST_NODE)
    except (ClusterError, UserError) as error:
        raise Unavailable(f"the version of this node's kubelet is not known: {error}") from error
    if not found:
        return None
    status = found[0].status
    beats = [each.last_heartbeat_time.timestamp() for each in status.conditions if each.last_heartbeat_time]
    return NodeKubelet(kubelet_version(status.node_info.kubelet_version), max(beats, default=0.0))
