"""Extended resources as a table: one line each, and sums over the cluster."""

from collections.abc import Iterator, Sequence

from colocate.cli.output import fitted
from colocate.devices.extended_resources import GRACE, ExtendedResource, ResourceState

_HEAD = ("NODE", "RESOURCE", "CAPACITY", "ALLOCATABLE", "REQUESTED", "STATE")
_HEAD_OF_WHY = "WHY"


def table(
    found: Sequence[ExtendedResource], *, wide: bool, width: int = 0, counts_down: bool = False
) -> Iterator[str]:
    """Lines; if several nodes have a resource, its sum comes last.

    A single look knows only the kubelet's last write, which is repeated, so the time of a stale resource would go up
    from one look to the next. With `counts_down` the caller remembers earlier looks.
    """
    rows = [list(_HEAD) + [_HEAD_OF_WHY] * wide]
    rows += [_row(one, counts_down) + [_why(one)] * wide for one in found]
    rows += _totals(found)
    return fitted(rows, width)


def state(resource: ExtendedResource, counts_down: bool = True) -> str:
    """The state in a few words, with a question mark if it is inferred."""
    match resource.state:
        case ResourceState.STALE if resource.remaining is not None:
            words = f"stale, ≤ {span(resource.remaining) if counts_down else f'{GRACE / 60:g}m'} left"
        case ResourceState.REMOVABLE:
            words = "stale, removable"
        case other:
            words = str(other)
    return words if resource.certain else f"{words} ?"


def span(seconds: float) -> str:
    """4m12s"""
    whole = round(seconds)
    return f"{whole // 60}m{whole % 60:02}s" if whole >= 60 else f"{whole}s"


def _row(one: ExtendedResource, counts_down: bool) -> list[str]:
    counts = [_count(one.capacity), _count(one.allocatable), str(one.requested)]
    return [one.node, one.name, *counts, state(one, counts_down)]


def _why(one: ExtendedResource) -> str:
    held = f"; held by {', '.join(holder.pod for holder in one.holders)}" if one.holders else ""
    return one.reason + held


def _count(count: int | None) -> str:
    return "-" if count is None else str(count)


def _totals(found: Sequence[ExtendedResource]) -> list[list[str]]:
    by_name: dict[str, list[ExtendedResource]] = {}
    for one in found:
        by_name.setdefault(one.name, []).append(one)
    return [
        [
            f"({len(all)} nodes)",
            name,
            str(sum(one.capacity or 0 for one in all)),
            str(sum(one.allocatable or 0 for one in all)),
            str(sum(one.requested for one in all)),
        ]
        for name, all in sorted(by_name.items())
        if len(all) > 1
    ]
