"""Which nodes' taints to write next: few writes a minute, and those first that keep pods off the hottest nodes."""

from collections.abc import Mapping, Sequence

import msgspec

from colocate.load.heat import Heat, rounded_down


class Change(msgspec.Struct, frozen=True):
    """One node's taints to be written."""

    node: str
    before: int
    after: int
    pressure: float

    def __str__(self) -> str:
        return f"{self.node}: heat {self.before} → {self.after} at {rounded_down(self.pressure):.0f} %"


class TaintPlan(msgspec.Struct, frozen=True):
    changes: tuple[Change, ...]
    """To be written now, in this order."""
    waiting: int
    """How many more there would be."""


def plan(
    shown: Mapping[str, int], heats: Mapping[str, Heat], written: Sequence[float], now: float, per_minute: int
) -> TaintPlan:
    """`shown` is what the nodes carry now; `written` the times of earlier writes."""
    wanted = sorted(
        (
            Change(name, shown.get(name, 0), heat.level, heat.pressure)
            for name, heat in heats.items()
            if heat.level != shown.get(name, 0)
        ),
        key=_importance,
    )
    allowed = max(0, per_minute - sum(now - time < 60 for time in written))
    return TaintPlan(tuple(wanted[:allowed]), max(0, len(wanted) - allowed))


def _importance(change: Change) -> tuple[bool, int, float, str]:
    """Hotter before cooler, then the greatest step, then the hottest; a cooler node misses pods, no more."""
    cools = change.after < change.before
    return (
        cools,
        -abs(change.after - change.before),
        change.pressure if cools else -change.pressure,
        change.node,
    )
