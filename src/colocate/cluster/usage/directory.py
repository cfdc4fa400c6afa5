"""Which node a name or an address belongs to. Pure.

An address that two nodes claim belongs to none: a sample in the wrong place is worse than none.
"""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec

from colocate.cluster.resources import NODES, Resource
from colocate.model import quantity
from colocate.model.load import Amount

_LONGEST = 300
"""Characters: more than any name or address with its port. Longer labels are ignored."""


class KnownNode(msgspec.Struct, frozen=True):
    """A node of the cluster, as much of it as samples need."""

    name: str
    addresses: tuple[str, ...] = ()
    """Its addresses of all kinds: IPs, host names, DNS names."""
    capacity: Amount = Amount()


class _Address(msgspec.Struct, frozen=True):
    address: str = ""


class _Status(msgspec.Struct, frozen=True):
    addresses: tuple[_Address, ...] | None = None
    capacity: dict[str, str | int | float] | None = None


class _Metadata(msgspec.Struct, frozen=True):
    name: str


class NodeShape(msgspec.Struct, frozen=True):
    """A Node object, as much of it as is read here."""

    metadata: _Metadata
    status: _Status = _Status()

    @property
    def known(self) -> KnownNode:
        capacity = self.status.capacity or {}
        return KnownNode(
            self.metadata.name,
            tuple(one.address for one in self.status.addresses or () if one.address),
            Amount(quantity.milli(capacity.get("cpu", 0)), quantity.whole(capacity.get("memory", 0))),
        )


NODE_ADDRESSES: Resource[NodeShape] = NODES.read_as(NodeShape)
"""Nodes, read in the shape that has their addresses."""


class Directory:
    """Finds nodes by what labels say."""

    def __init__(self, nodes: Iterable[KnownNode]) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.ambiguous: set[str] = set()
        """Addresses that several nodes claim."""
        self._by_address: dict[str, str] = {}
        for node in self.nodes.values():
            for address in map(_plain, node.addresses):
                if self._by_address.setdefault(address, node.name) != node.name:
                    self.ambiguous.add(address)
        for address in self.ambiguous:
            del self._by_address[address]

    def find(self, text: str) -> str | None:
        """The node that is called so, or has this address; a port at the end does not count."""
        if text in self.nodes:
            return text
        if len(text) > _LONGEST:
            return None
        host = host_of(text)
        if host in self.nodes:
            return host
        return self._by_address.get(_plain(host))

    def of(self, labels: Mapping[str, str], heeded: Sequence[str]) -> str | None:
        """The node of a series: the one that the first matching label names."""
        for label in heeded:
            text = labels.get(label)
            if text and (node := self.find(text)) is not None:
                return node
        return None


def host_of(text: str) -> str:
    """The host of host:port, [v6]:port, or of itself."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    host, colon, port = text.rpartition(":")
    # More than one colon without brackets is an IPv6 address, whose last group is no port.
    if colon and port.isdigit() and ":" not in host:
        return host
    return text


@lru_cache(maxsize=1 << 15)
def _plain(host: str) -> str:
    """One spelling for each address."""
    try:
        # A zone (fe80::1%eth0) is a matter of the machine that wrote it.
        return str(ipaddress.ip_address(host.partition("%")[0]))
    except ValueError:
        return host.lower().rstrip(".")
