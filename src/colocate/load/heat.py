"""A node's heat in five levels, for schedulers that know taints and no extender.

Levels are coarse, and each step weighs much: kube-scheduler compares a node's taints with the greatest number among
the candidates, so one step is worth 75 to 300 points. So levels change slowly, up at a step and down only well
below it. The lowest level is never left to a few nodes alone, which all pods would go to: those few are raised to
the level of the next nodes, unless these are hot. A node that is no longer measured keeps its level for a while; a
new node that is not measured yet is cool.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from colocate.load.demand import Demand
from colocate.load.policies.balanced import Balanced
from colocate.load.table import LoadTable
from colocate.load.terms import Freshness, NodeTerms, ResourceTerms
from colocate.model.load import NO_SAMPLES, NOTHING, OPEN, Access, NodeFacts

_NO_POD = Demand(NOTHING, NOTHING, NOTHING, 0)
_NEW = 300.0
"""Seconds for which a new node without a sample counts as empty."""


class HeatSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    steps: tuple[int, ...] = (60, 70, 80, 90)
    """Percents of pressure at which a node becomes hotter by one level."""
    hysteresis: int = 5
    """Percents below its step at which a level is left again."""
    cool_percent: int = 10
    """The least share of nodes on the lowest level, among nodes that take the same pods."""
    cool_nodes: int = 3
    """The least number of nodes on the lowest level; in a small cluster, half of its nodes are enough."""
    shared_below: int = 80
    """Percents of pressure: nodes are not raised to a level that begins here or above. Pods go to the few cool nodes
    before they go to hot ones."""

    hold: float = 3600.0
    """Seconds after its last sample for which a node does not become cooler."""

    def __post_init__(self) -> None:
        if self.hold < 0:
            raise ValueError(f"hold is {self.hold:g} s; give 0 or more")
        if not self.steps or len(self.steps) > 4 or list(self.steps) != sorted(set(self.steps)):
            raise ValueError(f"the steps {self.steps} must be one to four rising percentages")
        gaps = [high - low for low, high in zip(self.steps, self.steps[1:], strict=False)]
        if not 0 <= self.hysteresis <= min(gaps, default=self.hysteresis):
            raise ValueError(f"a hysteresis of {self.hysteresis} is not between 0 and a step's height")


class Heat(msgspec.Struct, frozen=True):
    """A node's heat."""

    pressure: float
    own: int
    """Its level by its own pressure; the next level depends on it."""
    level: int
    """The level that its taints show: at least the one that enough nodes share."""


def pressures(table: LoadTable) -> dict[str, float]:
    """How loaded every node is by its more loaded resource, in percent, at its busy times and with pods that
    are bound there and not measured yet. Assumed pods do not count: a caller that makes up pods must not cause
    taints."""
    balanced = Balanced(msgspec.structs.replace(table.settings.balanced, dominant_percent=100))
    return {name: balanced.pressure(_terms(table, node), _NO_POD) for name, node in table.nodes.items()}


def _terms(table: LoadTable, node: NodeFacts) -> NodeTerms:
    """A node's terms. A new node that was never measured counts as empty but for the pods that went there."""
    terms = table.bound_terms(node.name)
    if terms.freshness is not Freshness.NEVER or node.created is None or table.now >= node.created + _NEW:
        return terms
    return msgspec.structs.replace(terms, cpu=_empty(terms.cpu), memory=_empty(terms.memory))


def _empty(terms: ResourceTerms) -> ResourceTerms:
    return msgspec.structs.replace(terms, known=True, occupied=0.0)


def rounded_down(pressure: float, digits: int = 0) -> float:
    """For display, so that no step seems reached that is not."""
    scale = 10.0**digits
    return math.floor(pressure * scale) / scale


def held(table: LoadTable, since: float, settings: HeatSettings) -> set[str]:
    """Nodes that may not become cooler, as their load is unknown: a sample has expired not long ago, or there was
    never one and `since` is not long ago."""
    return {
        name
        for name in table.nodes
        if (sampled := _last_known(table, name, since)) is not None and table.now < sampled + settings.hold
    }


def _last_known(table: LoadTable, name: str, since: float) -> float | None:
    """When the first of its expired samples was taken; None while all are fresh."""
    terms, load = table.terms(name), table.loads.get(name, NO_SAMPLES)
    if load.cpu is None and load.memory is None:
        return since
    resources = ((load.cpu, terms.cpu), (load.memory, terms.memory))
    return min((usage.time for usage, of in resources if usage is not None and not of.measured), default=None)


def heats(
    pressures: Mapping[str, float],
    before: Mapping[str, Heat],
    settings: HeatSettings,
    held: Collection[str] = (),
    access: Mapping[str, Access] = {},
) -> dict[str, Heat]:
    """Every node's heat, from its pressure and its heat before; held nodes do not become cooler. The lowest level is
    shared among nodes that take the same pods. Nodes that take no pods are raised, too, but do not count as cool."""
    own = {
        name: own_level(pressure, before[name].own if name in before else None, settings)
        for name, pressure in pressures.items()
    }
    own |= {name: max(own[name], before[name].own) for name in held if name in own and name in before}
    pools: dict[frozenset[tuple[str, str]], list[int]] = defaultdict(list)
    for name, level in own.items():
        if not access.get(name, OPEN).closed:
            pools[access.get(name, OPEN).pool].append(level)
    floors = {pool: _shared_level(levels, settings) for pool, levels in pools.items()}
    return {
        name: Heat(pressures[name], level, max(level, floors.get(access.get(name, OPEN).pool, 0)))
        for name, level in own.items()
    }


def own_level(pressure: float, before: int | None, settings: HeatSettings) -> int:
    """One node's level by itself."""
    rising = sum(pressure >= step for step in settings.steps)
    if before is None:
        return rising
    falling = sum(pressure >= step - settings.hysteresis for step in settings.steps)
    return max(rising, min(before, falling))


def _shared_level(levels: Iterable[int], settings: HeatSettings) -> int:
    """The lowest level that enough nodes are at or below, and that is not hot yet."""
    ordered = sorted(levels)
    wanted = max(1, settings.cool_nodes, -(-len(ordered) * settings.cool_percent // 100))
    # At most half: of three nodes, a hot one must show it.
    shared = ordered[min(wanted, (len(ordered) + 1) // 2) - 1]
    return min(shared, sum(step < settings.shared_below for step in settings.steps))


class TaintChange(msgspec.Struct, frozen=True):
    """One node's taints to be written."""

    node: str
    before: int
    after: int
    pressure: float

    def __str__(self) -> str:
        return f"{self.node}: heat {self.before} → {self.after} at {rounded_down(self.pressure):.0f} %"


class TaintPlan(msgspec.Struct, frozen=True):
    changes: tuple[TaintChange, ...]
    """To be written now, in this order."""
    waiting: int
    """How many more changes are left for later."""


def plan_taints(
    shown: Mapping[str, int], heats: Mapping[str, Heat], written: Sequence[float], now: float, per_minute: int
) -> TaintPlan:
    """`shown` is what the nodes carry now; `written` the times of earlier writes."""
    wanted = sorted(
        (
            TaintChange(name, shown.get(name, 0), heat.level, heat.pressure)
            for name, heat in heats.items()
            if heat.level != shown.get(name, 0)
        ),
        key=_importance,
    )
    allowed = max(0, per_minute - sum(now - time < 60 for time in written))
    return TaintPlan(tuple(wanted[:allowed]), max(0, len(wanted) - allowed))


def _importance(change: TaintChange) -> tuple[bool, int, float, str]:
    """Order changes: hotter before cooler, then the greatest step, then the hottest."""
    cools = change.after < change.before
    return (
        cools,
        -abs(change.after - change.before),
        change.pressure if cools else -change.pressure,
        change.node,
    )
