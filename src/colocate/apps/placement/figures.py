"""Figures of the book for metrics: what is free where, how it is cut up, and who has less than it may use."""

from collections import Counter

from colocate import telemetry
from colocate.apps.metrics import tell_cpus
from colocate.apps.placement.book import PlacementBook
from colocate.cpus import CpuMode, PoolKind, fragmentation


def tell_figures(book: PlacementBook) -> None:
    """Set the gauges."""
    allocator = book.allocator
    now = allocator.occupancy()
    for kind in (PoolKind.CCX, PoolKind.NUMA):
        for pool in allocator.tree.kind(kind):
            free = max(0, now.free[pool.index]) / 1000
            telemetry.CPUS_FREE.labels(kind, pool.name.partition(" ")[2]).set(free)
    pieces = fragmentation(allocator)
    telemetry.CPUS_WHOLE_CCXS.labels("now").set(len(pieces.whole))
    telemetry.CPUS_WHOLE_CCXS.labels("after moves").set(len(pieces.after))
    modes = Counter(
        str(each.mode)
        for key, each in allocator.assignments.items()
        if key in book.containers and not book.containers[key].has_ended
    )
    for mode in CpuMode:
        telemetry.CPUS_CONTAINERS.labels(mode).set(modes.get(str(mode), 0))
    tell_cpus(allocator)
