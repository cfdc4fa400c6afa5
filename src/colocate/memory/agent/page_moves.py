"""The pages of a pod on their way to other NUMA nodes: moved process by process, or demoted by the kernel.

As much goes as was asked for and there is room for; an outcome says how much, and why not all.
"""

from collections.abc import Callable

from colocate.clock import Clock
from colocate.host.demotion import DemotionEnd, KernelDemotion, PodDemotion
from colocate.host.memory_group import MemoryGroup
from colocate.host.page_calls import PageCalls
from colocate.host.page_migration import MoveEnd, PageMigration, PagesMoved
from colocate.memory import ActionOutcome, ActionResult, Demote, MovePages, ReturnPages
from colocate.model.figures import amount
from colocate.model.memory import Bytes

_LEAST: Bytes = 1 << 20
"""Less than this is as good as nothing."""


async def move_pages(
    group: MemoryGroup, action: MovePages | ReturnPages, rate: Bytes, clock: Clock, calls: PageCalls
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
            break  # There was no more to move, wherever to.
    told = f"{amount(moved)} of {amount(action.bytes)} moved"
    short = action.bytes - moved >= _LEAST and (moved < _LEAST or bool(reasons))
    if short:
        return ActionOutcome(action, ActionResult.FAILED, "; ".join([told, *reasons]))
    return ActionOutcome(action, ActionResult.DONE, told)


async def demote(
    group: MemoryGroup,
    action: Demote,
    kernel: KernelDemotion,
    *,
    rate: Bytes,
    clock: Clock,
    go_on: Callable[[], bool],
) -> ActionOutcome:
    """Have the kernel demote as much as was asked for; FAILED where it will not move more, with the reason."""
    journey = PodDemotion(
        group, kernel, sources=action.sources, leave=action.leave, rate=rate, clock=clock, go_on=go_on
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
