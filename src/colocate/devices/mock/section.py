"""The section `mock` of the agent's configuration: its fields and their defaults."""

from enum import StrEnum

from colocate.model.device import Allocation
from colocate.model.values import Section


class Spread(StrEnum):
    """How devices are spread over NUMA nodes."""

    INTERLEAVE = "interleave"
    """Device i is near node i modulo n; a larger count does not change the others."""
    BLOCKS = "blocks"
    """The first devices are near the first node, the next near the second."""


class Numa(Section, frozen=True):
    """The NUMA nodes that devices are near to."""

    nodes: tuple[int, ...]
    spread: Spread = Spread.INTERLEAVE


class MockResource(Section, frozen=True):
    """A resource with devices that do not exist: `count` of them, or those in `ids`."""

    name: str
    count: int | None = None
    ids: tuple[str, ...] | None = None
    id_prefix: str | None = None
    """The prefix of each device's number, with `count`; by default the last part of the name."""
    numa: Numa | None = None
    inject: Allocation = Allocation()
    """What a container gets with its devices. Values may hold {ids}, {count} and {resource}."""


class Mock(Section, frozen=True):
    """Mock devices."""

    resources: tuple[MockResource, ...] = ()
