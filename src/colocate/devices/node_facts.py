"""What is known of a node whose extended resources are judged: facts, and who is who in them."""

from collections.abc import Mapping

import msgspec


class Writer(msgspec.Struct, frozen=True):
    """One entry of a node's managedFields that concerns its status."""

    manager: str
    time: float | None
    """When it wrote last, whatever it was."""
    capacity: frozenset[str]
    """The resources whose capacity it was the last to change."""
    beats: bool
    """It writes the heartbeats: it is the kubelet, whatever it is called."""


class KubeletFacts(msgspec.Struct, frozen=True):
    """What the kubelet of the node that we are on says itself; each None where that could not be had."""

    registered: Mapping[str, int] | None = None
    """From its checkpoint: the resources that it knows, with the healthy devices that it last wrote down."""
    healthy: Mapping[str, int] | None = None
    """From podresources: healthy devices now."""


class NodeRecords(msgspec.Struct, frozen=True, kw_only=True):
    """A node as the API shows it."""

    name: str
    capacity: Mapping[str, str] = {}
    allocatable: Mapping[str, str] = {}
    writers: tuple[Writer, ...] | None = None
    """None where the API server records no managedFields."""
    heartbeat: float | None = None
    """The kubelet's last heartbeat, which it sends with every write of the status."""
    silent: bool = False
    """The cluster has not heard of the kubelet for a while."""
    kubelet: KubeletFacts = KubeletFacts()
    beside: Mapping[str, str] = {}
    """Resources that an agent of ours writes into the status, each with that of its device plugin."""

    @property
    def last_word(self) -> float | None:
        """When the kubelet wrote the status last."""
        times = [one.time for one in self.writers or () if self._is_kubelet(one) and one.time is not None]
        return max(times, default=self.heartbeat)

    def hand(self, resource: str) -> Writer | None:
        """Who but the kubelet was the last to change a capacity; None where it was the kubelet, or nobody knows.

        What a node was registered with has no writer: that was the kubelet too.
        """
        owners = [one for one in self.writers or () if resource in one.capacity]
        if not owners or any(self._is_kubelet(one) for one in owners):
            return None
        return owners[0]

    def _is_kubelet(self, writer: Writer) -> bool:
        return writer.beats or writer.manager == "kubelet"
