"""What an operator can say about memory; each default is safe on a node that nobody has looked at."""

from enum import StrEnum

import msgspec

from colocate.errors import UserError
from colocate.memory.forecast import Forecast, Koordinator, WindowMax
from colocate.memory.limits import PAGE
from colocate.model.memory import Bytes
from colocate.model.resource_name import why_not_allowed

_MIB = 1 << 20


class PageCache(StrEnum):
    """Which page cache counts as free."""

    KUBELET = "kubelet"
    """Inactive file pages, as the kubelet reckons, whichever says less: it or the kernel's MemAvailable."""
    KERNEL = "kernel"
    """What the kernel's MemAvailable says. Sells more where online work reads many files, but the kubelet, which
    counts active pages as used, may evict before anything here acts."""


class Rung(StrEnum):
    """One way to give memory back. They are tried in this order, and undone in the other."""

    WITHDRAW = "withdraw"
    """Free blocks are no longer offered."""
    RECLAIM = "reclaim"
    """Page cache of colocated pods is dropped."""
    THROTTLE = "throttle"
    """Colocated pods are held where they are: who grows beyond, waits."""
    FAR = "far"
    """Their pages go to far NUMA nodes."""
    EVICT = "evict"
    """They are evicted through the API."""
    RECREATE = "recreate"
    """Bare pods that allow it are created again on another node."""


RUNGS = tuple(Rung)


def height(rung: Rung | None) -> int:
    """How far up; -1 on the ground."""
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


class MemorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a node's memory is sold."""

    resource: str = "colocate.dev/colocation-memory"
    block_size: Bytes = 512 * _MIB
    namespaces: tuple[str, ...] = ()
    """Whose pods may have blocks; all where none is named."""
    most_blocks: int = 50_000
    """Never more than this many. The kubelet takes some 70 000 devices in one message."""

    forecast: Forecast = WindowMax()
    """How much online work is expected to use."""
    page_cache: PageCache = PageCache.KUBELET
    margin: float = 0.10
    """Share of the capacity that is kept free above the kubelet's own reserves."""

    cool_down: float = 60.0
    """Seconds that more room must have lasted before blocks come back or a throttled pod is let go."""
    hysteresis: int = 1
    """Blocks come back when more than this many are missing."""

    tolerance: float = 0.25
    """Share of the margin that online work may take before a colocated pod is touched."""
    hurry: float = 0.50
    """Share of the margin beyond which no rung waits for its deadline."""
    deadlines: Deadlines = Deadlines()
    without: tuple[Rung, ...] = ()
    """Rungs that are never used here."""
    undo_pause: float = 20.0
    """Seconds between two rungs on the way back."""

    reclaim_pressure: float = 10.0
    """A pod that loses more than this percentage of its time to memory pressure is not reclaimed from."""
    reclaim_share: float = 0.25
    """The most of a pod's memory that is reclaimed at a time."""
    far_nodes: tuple[int, ...] | None = None
    """NUMA nodes for pages of colocated pods in need; None: those without CPUs; empty: none."""
    demotion: bool = False
    """Whether the kernel's demotion may be switched on for the far rung: a switch for the whole machine."""
    far_reserve: float = 0.05
    """Share of a far node that is left free."""
    retry: float = 30.0
    """Seconds until an eviction that a disruption budget stopped is asked for again."""
    leave_time: float = 120.0
    """Seconds that an evicted pod's memory is taken for as good as back."""

    swap: bool = False
    """Whether colocated pods may swap. Without it, blocks are all that they have."""
    longest_gap: float = 30.0
    """The most seconds that count between two looks: nobody's time runs out while nobody looks."""

    def sells_to(self, namespace: str) -> bool:
        return not self.namespaces or namespace in self.namespaces


def check_settings(settings: MemorySettings) -> MemorySettings:
    """The settings as they are; UserError names the first that cannot be."""
    name = why_not_allowed(settings.resource)
    shares = ("margin", "tolerance", "hurry", "reclaim_share", "far_reserve")
    spans = ("cool_down", "undo_pause", "retry", "leave_time", "longest_gap", "reclaim_pressure")
    refusals = [
        (name is not None, f"resource is {settings.resource!r}, but {name}"),
        (
            settings.block_size < _MIB or settings.block_size % PAGE != 0,
            f"block size is {settings.block_size} bytes; give at least 1Mi, in whole pages of 4Ki",
        ),
        (
            not 0 < settings.most_blocks <= 70_000,
            f"most blocks is {settings.most_blocks}; give 1 to 70000, which is what the kubelet takes",
        ),
        (settings.hysteresis < 0, f"hysteresis is {settings.hysteresis} blocks; give 0 or more"),
        (
            Rung.WITHDRAW in settings.without,
            "the rung 'withdraw' cannot be left out: the node must not offer memory that it does not have",
        ),
        (
            settings.hurry < settings.tolerance,
            f"hurry ({settings.hurry}) is below tolerance ({settings.tolerance}); make hurry the larger share",
        ),
        *(
            (
                not 0 <= getattr(settings, field) < 1,
                f"{field} is {getattr(settings, field)}; give a share below 1{_percent(getattr(settings, field))}",
            )
            for field in shares
        ),
        *(
            (
                not 0 <= getattr(settings, field) < 1e9,
                f"{field} is {getattr(settings, field)}; give 0 or more",
            )
            for field in spans
        ),
        *(
            (not 0 <= settings.deadlines.of(rung) < 1e9, f"the deadline of {rung} is negative; give seconds")
            for rung in Rung
        ),
        (
            isinstance(settings.forecast, Koordinator) and not 0 < settings.forecast.threshold <= 100,
            f"the koordinator forecast's threshold is {_threshold(settings.forecast) / 100:g}; give a share above 0 "
            f"and at most 1{_percent(_threshold(settings.forecast) / 100)}",
        ),
        (
            isinstance(settings.forecast, WindowMax) and settings.forecast.window <= 0,
            "the window-max forecast's window is a span of time; give more than 0 seconds",
        ),
    ]
    for refused, why in refusals:
        if refused:
            raise UserError(f"memory: {why}")
    return settings


def _threshold(forecast: object) -> float:
    return forecast.threshold if isinstance(forecast, Koordinator) else 0.0


def _percent(share: float) -> str:
    """A question to who wrote 10 and may have meant 10 %."""
    return f"; did you mean {share:g}%?" if 2 <= share <= 100 else ""
