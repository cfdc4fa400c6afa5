"""A node's heat as taints: which they are, what a node shows, what it must show. Pure; no other taint is touched."""

from collections.abc import Iterable, Mapping, Sequence

from colocate.model.load import Taint
from colocate.scheduler.loop.table_feed import WatchedNode

PREFIX = "colocate.dev/load-"
EFFECT = "PreferNoSchedule"
LEVELS = 4
REMOVAL = f"for n in 1 2 3 4; do kubectl taint nodes --all {PREFIX}$n:{EFFECT}-; done"
"""Takes them from all nodes, by hand. One after the other: kubectl changes no node that lacks one of several."""
_ODD = -1
"""The level of a node with a set of our taints that is no level's: it is always written anew."""


def keys(level: int) -> tuple[str, ...]:
    """The taints of a level."""
    return tuple(f"{PREFIX}{number}" for number in range(1, level + 1))


def level_of(taints: Sequence[Taint]) -> int:
    """The level that a node shows."""
    ours = [taint.key for taint in taints if _is_ours(taint.key, taint.effect)]
    level = len(ours)
    return level if set(ours) == set(keys(level)) else _ODD


def tainted(nodes: Iterable[WatchedNode]) -> list[str]:
    """The nodes that have any of ours."""
    return [node.metadata.name for node in nodes if level_of(node.spec.taints) != 0]


def with_level(taints: object, level: int) -> list[object]:
    """A node's taints with ours brought to a level; all others stay as and where they are."""
    others = [one for one in taints if not _is_one_of_ours(one)] if isinstance(taints, list) else []
    return [*others, *({"key": key, "effect": EFFECT} for key in keys(level))]


def _is_one_of_ours(taint: object) -> bool:
    return isinstance(taint, Mapping) and _is_ours(taint.get("key"), taint.get("effect"))


def _is_ours(key: object, effect: object) -> bool:
    """Whether we write it: a taint is known by its key and its effect together."""
    return effect == EFFECT and key in keys(LEVELS)
