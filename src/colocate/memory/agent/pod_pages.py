"""Pages taken from a pod: reclaimed, moved to other NUMA nodes process by process, or demoted by the kernel.

Each function takes as much as it was asked for, if it can; its outcome says how much, and why not all.
"""

from colocate.clock import Clock
from colocate.errors import Unavailable
from colocate.host import memory_files
from colocate.host.demotion import DemotionEnd, KernelDemotion, PodDemotion
from colocate.host.memory_group import MemoryGroup
from colocate.host.page_calls import Kernel
from colocate.host.page_migration import MoveEnd, PageMigration, PagesMoved
from colocate.host.reclaim import ReclaimEnd, reclaim
from colocate.memory import ActionOutcome, ActionResult, Demote, MovePages, Reclaim, ReturnPages
from colocate.model.figures import amount
from colocate.model.memory import Bytes

_LEAST: Bytes = 1 << 20
"""Less than this counts as nothing."""

_RECLAIM_TIME = 5.0
"""Seconds after which a reclaim takes no further step; the next turn measures what it freed."""


async def reclaim_pages(
    group: MemoryGroup, action: Reclaim, clock: Clock, most_pressure: float
) -> ActionOutcome:
    """Reclaim until the pod loses more than `most_pressure` percent of its time to it; FAILED where nothing comes."""
    end = clock.monotonic() + _RECLAIM_TIME
    done = await reclaim(
        group,
        action.bytes,
        leave=action.leave,
        go_on=lambda: clock.monotonic() < end and pressure_of(group) <= most_pressure,
    )
    told = f"{amount(done.amount)} of {amount(action.bytes)} reclaimed: {done.end}"
    if done.end is ReclaimEnd.GONE:
        return ActionOutcome(action, ActionResult.GONE, told)
    nothing = done.end is ReclaimEnd.NOTHING_LEFT and done.amount < _LEAST
    return ActionOutcome(action, ActionResult.FAILED if nothing else ActionResult.DONE, told)


async def move_pages(
    group: MemoryGroup, action: MovePages | ReturnPages, rate: Bytes, clock: Clock, calls: Kernel
) -> ActionOutcome:
    """Move as much as was asked for; FAILED where too little went, with the reason."""
    moved = 0
    reasons: list[str] = []
    for target in action.targets:
        journey = PageMigration(
            group,
            sources=frozenset(action.sources),
            target=target,
            rate=rate,
            clock=clock,
            calls=calls,
            at_most=action.bytes - moved,
        )
        report = await journey.run()
        moved += report.moved
        if action.bytes - moved < _LEAST:
            break
        reasons += _why_not_all(target, report)
        if report.end is MoveEnd.DONE:
            break  # There is no more to move to any node.
    told = f"{amount(moved)} of {amount(action.bytes)} moved"
    short = action.bytes - moved >= _LEAST and (moved < _LEAST or bool(reasons))
    if short:
        return ActionOutcome(action, ActionResult.FAILED, "; ".join([told, *reasons]))
    return ActionOutcome(action, ActionResult.DONE, told)


async def demote_pages(
    group: MemoryGroup,
    action: Demote,
    kernel: KernelDemotion,
    *,
    rate: Bytes,
    clock: Clock,
    most_pressure: float,
) -> ActionOutcome:
    """Have the kernel demote as much as was asked for; FAILED where it will not move more, with the reason."""
    # A throttled pod is under pressure already; demotion must not add to that.
    allowed = max(most_pressure, pressure_of(group))
    journey = PodDemotion(
        group,
        kernel,
        sources=action.sources,
        leave=action.leave,
        rate=rate,
        clock=clock,
        go_on=lambda: pressure_of(group) <= allowed,
    )
    report = await journey.run(action.bytes)
    told = f"{amount(report.moved)} of {amount(action.bytes)} demoted by memory.numa_stat: {report.end}"
    if report.dropped >= _LEAST:
        told = f"{told}; {amount(report.dropped)} of cache dropped or memory swapped"
    if report.end is DemotionEnd.GONE:
        return ActionOutcome(action, ActionResult.GONE, told)
    more_may_go = report.end in (DemotionEnd.ENOUGH, DemotionEnd.STOPPED) or (
        report.end is DemotionEnd.NOTHING_LEFT and report.moved >= _LEAST
    )
    return ActionOutcome(action, ActionResult.DONE if more_may_go else ActionResult.FAILED, told)


def _why_not_all(target: int, report: PagesMoved) -> list[str]:
    reasons = [each.reason for each in report.refused]
    if report.end in (MoveEnd.NO_ROOM, MoveEnd.NO_NODE):
        reasons.append(f"NUMA {target}: {report.end}")
    return list(dict.fromkeys(reasons))


def pressure_of(group: MemoryGroup) -> float:
    """The percentage of its time that a pod loses to memory pressure now; 0 where the kernel does not measure it."""
    try:
        return memory_files.pressure(group.read("memory.pressure")).some10
    except (Unavailable, OSError):
        return 0.0
