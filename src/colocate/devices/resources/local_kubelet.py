"""What the kubelet says of its devices, where the node is the machine that we run on.

Its checkpoint and podresources know what the API does not show. Everything here is a bonus: whatever cannot be
read is left out, and the judgement says that it infers.
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
    """The part of a node's nodeInfo that says which machine it is."""

    boot_id: str = ""
    machine_id: str = ""


class _NodeMarks(msgspec.Struct, frozen=True):
    """All by which a node can be known as this machine."""

    name: str
    hostname: str
    identity: NodeIdentity


class LocalKubelet:
    """The kubelet of this machine, if it has one."""

    def __init__(self, paths: KubeletPaths, machine: Identity, clock: Clock, *, node: str = "") -> None:
        """`node`: the name that this machine's node is said to have, if anybody says so."""
        self._paths = paths
        self._machine = machine
        self._clock = clock
        self._node = node

    def may_be_of(self, node: _NodeMarks) -> bool:
        """Whether the node runs on this kernel; nodes that are containers share it with one another.

        An embedded kubelet has a boot id of its own, and with it another node than the machine's own kubelet.
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
        """Whether the node calls itself as this machine does: then no other can be it."""
        return self.may_be_of(node) and node.hostname == self._machine.hostname.lower()

    def which(self, nodes: Iterable[_NodeMarks]) -> str | None:
        """Of all nodes of a cluster, the name of the one that is this machine.

        One folder is one kubelet's. Where several nodes share this kernel, one of them must agree in more than
        that: in host name, in the name that was said, or in machine id. A folder that somebody has named is
        taken at its word where there is but one.
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
