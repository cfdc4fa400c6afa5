"""What the kubelet says of its devices, where the node is the machine that we run on.

Its checkpoint and podresources know what the API does not show. Everything here is a bonus: whatever cannot be
read is left out, and the judgement says that it infers.
"""

import asyncio

import msgspec

from colocate.clock import Clock
from colocate.devices.node_facts import KubeletFacts
from colocate.errors import ColocateError, Unavailable
from colocate.host.identity import Identity
from colocate.kubelet import checkpoint
from colocate.kubelet.paths import KubeletPaths
from colocate.kubelet.podresources import healthy_devices


class NodeIdentity(msgspec.Struct, frozen=True, rename={"boot_id": "bootID", "machine_id": "machineID"}):
    """The part of a node's nodeInfo that says which machine it is."""

    boot_id: str = ""
    machine_id: str = ""


class LocalKubelet:
    """The kubelet of this machine, if it has one."""

    def __init__(self, paths: KubeletPaths, machine: Identity, clock: Clock, *, stated: bool = False) -> None:
        self._paths = paths
        self._machine = machine
        self._clock = clock
        self._stated = stated
        """Somebody has named the folder, and need not be doubted."""

    def is_of(self, node: NodeIdentity, hostname: str) -> bool:
        """Whether a node is this machine.

        Nodes that are containers share a kernel and its boot id with one another, and not a folder: there the
        machine id or the host name must agree as well, unless somebody has said which folder it is.
        """
        here = self._machine
        if not here.boot_id or node.boot_id != here.boot_id:
            return False
        same = bool(here.machine_id) and node.machine_id == here.machine_id
        return self._stated or same or hostname == here.hostname

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
