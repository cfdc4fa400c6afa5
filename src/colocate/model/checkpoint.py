"""What a kubelet keeps about devices across restarts: which container holds which, and which are registered.

Values only. How a file is read, hashed and written is in `kubelet.checkpoint`.
"""

import enum
from collections.abc import Sequence
from itertools import chain

import msgspec

from colocate.model.device import Allocation

NO_TOPOLOGY = -1
"""The NUMA node under which the kubelet files devices that name none."""

Ids = tuple[str, ...] | None
"""A list of device ids, or None for a list that was never made (Go's nil); the checksum tells them apart."""


class Format(enum.Enum):
    """A format of the checkpoint file; the value names the kubelet versions that write it."""

    PLAIN = "1.9–1.10"
    """The data alone: no checksum, device ids in a list."""
    LIST = "1.11–1.19"
    """Data and checksum, device ids in a list."""
    NUMA = "1.20 and later"
    """Data and checksum, device ids by NUMA node."""


class Entry(msgspec.Struct, frozen=True):
    """What one container holds of one resource."""

    pod_uid: str
    container: str
    resource: str
    devices: dict[int, Ids] | Ids
    """Ids by NUMA node in the NUMA format, otherwise a list of ids; None is Go's nil."""
    alloc_resp: bytes | None
    """The plugin's answer to Allocate, in protobuf."""

    @property
    def by_node(self) -> dict[int, tuple[str, ...]]:
        """The ids by NUMA node, in every format; a device that is near two nodes is under both."""
        if isinstance(self.devices, dict):
            return {node: ids or () for node, ids in self.devices.items()}
        return {NO_TOPOLOGY: self.devices or ()}

    @property
    def ids(self) -> frozenset[str]:
        """Every id held, on any node."""
        return frozenset(chain.from_iterable(self.by_node.values()))


class Checkpoint(msgspec.Struct, frozen=True):
    """All that a kubelet keeps about devices. Lists keep the order of the file, because the checksum depends on
    it."""

    entries: tuple[Entry, ...] | None
    registered: dict[str, Ids] | None
    """The healthy devices of every resource that a plugin has registered."""

    def held(self, resource: str) -> frozenset[str]:
        """The ids of the resource that any container holds, registered or not."""
        held = (entry.ids for entry in self.entries or () if entry.resource == resource)
        return frozenset(chain.from_iterable(held))


class Reading(msgspec.Struct, frozen=True):
    """A checkpoint file, fully decoded: the input of findings, and what commands show."""

    checkpoint: Checkpoint
    format: Format
    stated: int | None
    """The checksum that the file states."""
    computed: int
    """The checksum computed from the file's data."""
    injected: Sequence[Allocation | None]
    """What Allocate injected, one item per entry; None where the bytes cannot be read."""

    @property
    def is_trusted(self) -> bool:
        """Whether a kubelet would accept the data. The oldest format has no checksum, and is always accepted."""
        return self.format is Format.PLAIN or (self.stated or 0) == self.computed
