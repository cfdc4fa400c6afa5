"""A node's heat in five levels, for schedulers that know taints and no extender.

Levels are coarse, and strong where they are apart: a kube-scheduler measures a node's taints against the greatest
number among the candidates, so that one step is a quarter to all of the 300 points by which the hottest loses. So
they change reluctantly, up at a step and down only well below it; and the lowest level is never left to a few nodes
alone, on which all pods would go: those few are raised to the level of the next, unless the next are hot. A node
that is no longer measured keeps its level for a while; one that is new and not measured yet is cool.
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
"""Seconds after it was made in which a node may be without any sample yet."""


class HeatSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    steps: tuple[int, ...] = (60, 70, 80, 90)
    """Percents of pressure at which a node becomes hotter by one level."""
    hysteresis: int = 5
    """Percents below its step at which a level is left again."""
    cool_percent: int = 10
    """Of the nodes that take the same pods, those that share the lowest level at least."""
    cool_nodes: int = 3
    """The same as a number; in a cluster of few nodes, half of them are enough."""
    shared_below: int = 80
    """Percents of pressure: nodes are raised to no level that begins here or above. However few are cool, pods go
    there before they go to nodes that are hot."""

    hold: float = 3600.0
    """Seconds after its last sample for which a node is not taken for cooler than it was."""

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
    """Its level by itself; what the next one depends on."""
    level: int
    """What it shows: not less than what enough nodes share."""


def pressures(table: LoadTable) -> dict[str, float]:
    """How loaded every node is by its more loaded resource, in percent, at its busy times and with pods that
    are bound there and not measured yet. Pods that were only asked about count for nothing: a taint concerns
    everybody, and whoever may ask could make one."""
    balanced = Balanced(msgspec.structs.replace(table.settings.balanced, dominant_percent=100))
    return {name: balanced.pressure(_terms(table, node), _NO_POD) for name, node in table.nodes.items()}


def _terms(table: LoadTable, node: NodeFacts) -> NodeTerms:
    """What a node is judged by. One that is new and was never measured is empty, but for the pods that went there."""
    terms = table.bound_terms(node.name)
    if terms.freshness is not Freshness.NEVER or node.created is None or table.now >= node.created + _NEW:
        return terms
    return msgspec.structs.replace(terms, cpu=_empty(terms.cpu), memory=_empty(terms.memory))


def _empty(terms: ResourceTerms) -> ResourceTerms:
    return msgspec.structs.replace(terms, known=True, occupied=0.0)


def rounded_down(pressure: float, digits: int = 0) -> float:
    """For people: no step seems reached that is not."""
    scale = 10.0**digits
    return math.floor(pressure * scale) / scale


def held(table: LoadTable, since: float, settings: HeatSettings) -> set[str]:
    """Nodes of which nobody knows whether they have become cooler: a sample of theirs has expired, not long ago; or
    they never had any, not long after `since`."""
    return {
        name
        for name in table.nodes
        if (sampled := _last_known(table, name, since)) is not None and table.now < sampled + settings.hold
    }


def _last_known(table: LoadTable, name: str, since: float) -> float | None:
    """When the node was last known as well as it ever was; None where it is now."""
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
    """Every node's heat, by what it was before; of those that are held, no less. The lowest level is shared by nodes
    that take the same pods; those that take none show what the others do, and are none of the cool ones."""
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
    # Of three nodes, one that is hot must show it: all three can never be the cool ones.
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
    """How many more there would be."""


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
    """Hotter before cooler, then the greatest step, then the hottest; a cooler node misses pods, no more."""
    cools = change.after < change.before
    return (
        cools,
        -abs(change.after - change.before),
        change.pressure if cools else -change.pressure,
        change.node,
    )
