"""The settings of memory: what an operator says (`MemoryOffer`), and what is fixed besides (`MemorySettings`).

Every default is safe on a node that has never been measured. The section `memory` of the agent's configuration is a
`MemoryOffer` with the fields of the acting part. The type of a field gives its range: a Share is below 1, Seconds are
0 or more; `check_settings` has the rest.
"""

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from colocate.errors import UserError
from colocate.memory.forecast import Forecast, Koordinator, WindowMax
from colocate.memory.limits import PAGE
from colocate.model.resource_name import why_not_allowed
from colocate.model.values import Seconds, Section, Share, Size

_MIB = 1 << 20


class PageCache(StrEnum):
    """Which page cache counts as free."""

    KUBELET = "kubelet"
    """Inactive file pages, as the kubelet counts; the smaller of this and the kernel's MemAvailable."""
    KERNEL = "kernel"
    """The kernel's MemAvailable. Sells more where online work reads many files, but the kubelet, which counts active
    pages as used, may evict before the agent acts."""


class Rung(StrEnum):
    """A step of the ladder by which pods give memory back. Tried in this order, undone in reverse order."""

    WITHDRAW = "withdraw"
    """Free blocks are no longer offered."""
    RECLAIM = "reclaim"
    """Page cache of colocated pods is dropped."""
    THROTTLE = "throttle"
    """Colocated pods are held at what they use: one that grows beyond it is slowed down."""
    FAR = "far"
    """Pages of colocated pods go to far NUMA nodes."""
    EVICT = "evict"
    """Colocated pods are evicted through the API."""
    RECREATE = "recreate"
    """Bare pods that allow it are created again on another node."""


RUNGS = tuple(Rung)


def height(rung: Rung | None) -> int:
    """The number of a rung, from 0; -1 where the ladder is not in use."""
    return -1 if rung is None else RUNGS.index(rung)


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that each rung has to pay before the next is tried."""

    withdraw: float = 10.0
    reclaim: float = 30.0
    throttle: float = 30.0
    far: float = 60.0
    evict: float = 60.0
    recreate: float = 60.0

    def of(self, rung: Rung) -> float:
        return {
            Rung.WITHDRAW: self.withdraw,
            Rung.RECLAIM: self.reclaim,
            Rung.THROTTLE: self.throttle,
            Rung.FAR: self.far,
            Rung.EVICT: self.evict,
            Rung.RECREATE: self.recreate,
        }[rung]


class MemoryOffer(Section, frozen=True):
    """What an operator says about the memory that a node sells."""

    resource: str = "colocate.dev/colocation-memory"
    block_size: Size = Size(512 * _MIB)
    namespaces: tuple[str, ...] = ()
    """Namespaces whose pods may have blocks; all where none is named."""
    page_cache: PageCache = PageCache.KUBELET
    margin: Share = Share(0.10)
    """Share of the capacity that is kept free above the kubelet's own reserves."""
    cool_down: Seconds = Seconds(60)
    """How long more room must have lasted before blocks come back or a throttled pod is released."""
    hysteresis: int = 1
    """Blocks come back when more than this many are missing."""
    swap: bool = False
    """Whether colocated pods may swap. Without it they have only their blocks."""
    without: tuple[Rung, ...] = ()
    """Rungs of the ladder that are never used."""
    far_nodes: tuple[int, ...] | None = None
    """NUMA nodes that pages of colocated pods may go to; None: those without CPUs; empty: none."""
    demotion: bool = False
    """Whether the kernel's demotion may be switched on for the far rung: a switch for the whole machine."""


class MemorySettings(MemoryOffer, frozen=True):
    """Everything that memory is decided by."""

    forecast: Forecast = WindowMax()
    """How much online work is expected to use."""
    most_blocks: int = 50_000
    """Upper bound on blocks. The kubelet takes some 70 000 devices in one message."""

    tolerance: Share = Share(0.25)
    """Share of the margin that online work may take before a colocated pod is touched."""
    hurry: Share = Share(0.50)
    """Share of the margin beyond which no rung waits for its deadline."""
    deadlines: Deadlines = Deadlines()
    undo_pause: Seconds = Seconds(20)
    """Time between two rungs on the way back."""

    reclaim_pressure: float = 10.0
    """Nothing is reclaimed from a pod that loses more than this percentage of its time to memory pressure."""
    reclaim_share: Share = Share(0.25)
    """Largest share of a pod's memory that is reclaimed at a time."""
    far_reserve: Share = Share(0.05)
    """Share of a far node that is left free."""
    retry: Seconds = Seconds(30)
    """Time until an eviction that a disruption budget stopped is requested again."""
    leave_time: Seconds = Seconds(120)
    """How long the memory of an evicted pod counts as already returned."""
    longest_gap: Seconds = Seconds(30)
    """Longest time that counts between two turns, so that no deadline runs out while the agent is down."""

    def sells_to(self, namespace: str) -> bool:
        return not self.namespaces or namespace in self.namespaces


def check_settings(settings: MemorySettings) -> MemorySettings:
    """Return the settings; UserError names the first value that is not allowed."""
    for why in _refusals(settings):
        raise UserError(f"memory: {why}")
    return settings


def _refusals(settings: MemorySettings) -> Iterator[str]:
    if name := why_not_allowed(settings.resource):
        yield f"resource is {settings.resource!r}, but {name}"
    if settings.block_size < _MIB or settings.block_size % PAGE != 0:
        yield f"block size is {settings.block_size} bytes; give at least 1Mi, in whole pages of 4Ki"
    if not 0 < settings.most_blocks <= 70_000:
        yield f"most blocks is {settings.most_blocks}; give 1 to 70000, which is what the kubelet takes"
    if settings.hysteresis < 0:
        yield f"hysteresis is {settings.hysteresis} blocks; give 0 or more"
    if Rung.WITHDRAW in settings.without:
        yield "the rung 'withdraw' cannot be left out: the node must not offer memory that it does not have"
    if settings.hurry < settings.tolerance:
        yield f"hurry ({settings.hurry}) is below tolerance ({settings.tolerance}); make hurry the larger share"
    values = [
        (each.name, each.type, getattr(settings, each.name)) for each in msgspec.structs.fields(settings)
    ]
    for field, kind, value in values:
        if kind is Share and not 0 <= value < 1:
            yield f"{field} is {value}; give a share below 1{_percent(value)}"
    for field, kind, value in values:
        if (kind is Seconds or field == "reclaim_pressure") and not 0 <= value < 1e9:
            yield f"{field} is {value}; give 0 or more"
    for rung in Rung:
        if not 0 <= settings.deadlines.of(rung) < 1e9:
            yield f"the deadline of {rung} is negative; give seconds"
    match settings.forecast:
        case Koordinator(threshold=percent) if not 0 < percent <= 100:
            yield (
                f"the koordinator forecast's threshold is {percent / 100:g}; give a share above 0 and at most 1"
                f"{_percent(percent / 100)}"
            )
        case WindowMax(window=window) if window <= 0:
            yield "the window-max forecast's window is a span of time; give more than 0 seconds"


def _percent(share: float) -> str:
    """Ask a user who wrote 10 whether it should be 10 %."""
    return f"; did you mean {share:g}%?" if 2 <= share <= 100 else ""
