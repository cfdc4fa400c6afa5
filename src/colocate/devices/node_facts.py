"""Facts about a node whose extended resources are judged, and who wrote what in its status."""

from collections.abc import Mapping

import msgspec


class Writer(msgspec.Struct, frozen=True):
    """One entry of a node's managedFields that concerns its status."""

    manager: str
    time: float | None
    """When it last wrote anything."""
    capacity: frozenset[str]
    """The resources whose capacity it changed last."""
    beats: bool
    """Whether it writes the heartbeats: then it is the kubelet, whatever its name."""


class KubeletFacts(msgspec.Struct, frozen=True):
    """What the kubelet of this machine says; a field is None if it could not be read."""

    registered: Mapping[str, int] | None = None
    """From its checkpoint: the resources that it knows, with the healthy devices that it last recorded."""
    healthy: Mapping[str, int] | None = None
    """From podresources: healthy devices now."""


class NodeRecords(msgspec.Struct, frozen=True, kw_only=True):
    """A node as the API shows it."""

    name: str
    capacity: Mapping[str, str] = {}
    allocatable: Mapping[str, str] = {}
    writers: tuple[Writer, ...] | None = None
    """The writers of the status; None if the API server records no managedFields."""
    heartbeat: float | None = None
    """The kubelet's last heartbeat, which it sends with every write of the status."""
    silent: bool = False
    """The cluster has not heard from the kubelet for a while."""
    kubelet: KubeletFacts = KubeletFacts()
    beside: Mapping[str, str] = {}
    """Resources that an agent of Colocate writes into the status, each with the resource of its device plugin."""

    @property
    def last_word(self) -> float | None:
        """When the kubelet last wrote the status."""
        times = [one.time for one in self.writers or () if self._is_kubelet(one) and one.time is not None]
        return max(times, default=self.heartbeat)

    def hand(self, resource: str) -> Writer | None:
        """The writer other than the kubelet that last changed a capacity; None if it was the kubelet, or unknown.

        A capacity from the node's registration has no recorded writer: that was the kubelet too.
        """
        owners = [one for one in self.writers or () if resource in one.capacity]
        if not owners or any(self._is_kubelet(one) for one in owners):
            return None
        return owners[0]

    def _is_kubelet(self, writer: Writer) -> bool:
        return writer.beats or writer.manager == "kubelet"
