"""What the kubelet of this machine says about its devices, if it is a node of the cluster.

Its checkpoint and podresources know more than the API shows. All of it is optional: what cannot be read is left out,
and the judgement is then marked as inferred.
"""

import asyncio
from collections.abc import Iterable
from functools import cached_property

import msgspec

from colocate.clock import Clock
from colocate.devices.node_facts import KubeletFacts
from colocate.errors import ColocateError, Unavailable
from colocate.host.identity import Identity
from colocate.kubelet import checkpoint
from colocate.kubelet.paths import DEFAULT_ROOT, KubeletPaths
from colocate.kubelet.podresources import healthy_devices


class NodeIdentity(msgspec.Struct, frozen=True, rename={"boot_id": "bootID", "machine_id": "machineID"}):
    """The part of a node's nodeInfo that identifies the machine."""

    boot_id: str = ""
    machine_id: str = ""


class _NodeMarks(msgspec.Struct, frozen=True):
    """Everything that can identify a node as this machine."""

    name: str
    hostname: str
    identity: NodeIdentity


class LocalKubelet:
    """The kubelet of this machine, if there is one."""

    def __init__(self, paths: KubeletPaths, machine: Identity, clock: Clock, *, node: str = "") -> None:
        """`node`: the name of this machine's node, if configured."""
        self._paths = paths
        self._machine = machine
        self._clock = clock
        self._node = node

    def may_be_of(self, node: _NodeMarks) -> bool:
        """Whether the node runs on this kernel; nodes that are containers share it.

        An embedded kubelet has its own boot id, so its node is not the node of the machine's own kubelet.
        """
        return bool(self._boot_id) and node.identity.boot_id == self._boot_id

    @cached_property
    def _boot_id(self) -> str:
        try:
            return self._paths.boot_id.read_text().strip()
        except FileNotFoundError:
            return self._machine.boot_id
        except (OSError, ValueError):
            return ""

    def is_surely_of(self, node: _NodeMarks) -> bool:
        """Whether the node also has this machine's host name, so that no other node can be it."""
        return self.may_be_of(node) and node.hostname == self._machine.hostname.lower()

    def which(self, nodes: Iterable[_NodeMarks]) -> str | None:
        """The name of the node that is this machine, among all nodes of a cluster.

        A folder belongs to one kubelet. If several nodes share this kernel, one must also agree in host name, in the
        configured name or in machine id. If only one node shares it, a folder that the user named belongs to that
        node.
        """
        here = [node for node in nodes if self.may_be_of(node)]
        id = self._machine.machine_id
        for agreeing in (
            [node for node in here if self.is_surely_of(node)],
            [node for node in here if self._node and node.name == self._node],
            [node for node in here if id and node.identity.machine_id == id],
            here if self._paths.root != DEFAULT_ROOT else [],
        ):
            if len(agreeing) == 1:
                return agreeing[0].name
        return None

    async def facts(self) -> KubeletFacts:
        return KubeletFacts(await asyncio.to_thread(self._registered), await self._healthy())

    def _registered(self) -> dict[str, int] | None:
        try:
            document = checkpoint.parse(self._paths.checkpoint.read_bytes())
        except (OSError, ColocateError):
            return None
        return {name: len(ids or ()) for name, ids in (document.checkpoint.registered or {}).items()}

    async def _healthy(self) -> dict[str, int] | None:
        try:
            healthy = await healthy_devices(self._paths, self._clock)
        except Unavailable:
            return None
        return {name: len(ids) for name, ids in healthy.items()}
