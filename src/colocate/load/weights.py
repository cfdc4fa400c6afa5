"""How heavily a kube-scheduler should weigh the extender beside its own plugins.

kube-scheduler adds up, per node, each plugin's score (0 to 100) times its weight, and the extender's score times
its weight times ten. What the other plugins can say for a node is therefore at most 100 times their weights.

Heavier is not better: an extender that outvotes all of them also outvotes PodTopologySpread, which keeps apart the
replicas of a deployment, and these are busy at the same time. Replays of real traces leave the fewest hot nodes where
one point of the extender is worth ten points of the plugins that kube-scheduler has by default.
"""

import math
from collections.abc import Sequence

import msgspec

from colocate.errors import UserError

DEFAULT_POINTS = 25
"""Points by which hot nodes lose whatever other plugins score. By `balanced` a node with 90 % of its memory in use
scores 37 less than one with 40 %."""
PER_POINT = 10
"""kube-scheduler takes an extender's scores for 0 to 10 and brings them to 0 to 100; it bounds nothing."""


class ScorePlugin(msgspec.Struct, frozen=True):
    """A plugin of kube-scheduler that scores, and its weight."""

    name: str
    weight: int


DEFAULT_PLUGINS = (
    ScorePlugin("TaintToleration", 3),
    ScorePlugin("NodeAffinity", 2),
    ScorePlugin("PodTopologySpread", 2),
    ScorePlugin("InterPodAffinity", 2),
    ScorePlugin("NodeResourcesFit", 1),
    ScorePlugin("NodeResourcesBalancedAllocation", 1),
    ScorePlugin("ImageLocality", 1),
)
"""As kube-scheduler 1.34 has them when nothing is configured."""
_MEASURED_WITH = 100 * sum(plugin.weight for plugin in DEFAULT_PLUGINS)
"""The most points of those plugins; beside them a weight of 1 is best."""


class ExtenderWeight(msgspec.Struct, frozen=True):
    """An extender's weight, and what it means."""

    weight: int
    points: int
    """A node that scores so many points less always loses; 0 where no difference is enough."""
    others: int
    """The most points that the other plugins can give a node."""

    @property
    def reasons(self) -> tuple[str, ...]:
        if not self.points:
            worth = self.weight * PER_POINT
            return (
                f"the other score plugins can prefer a node by at most {self.others}",
                f"each point that a node scores less costs it {worth} by a weight of {self.weight}",
                "so load decides, and replicas, which are busy together, still keep apart;",
                "in replays, heavier and lighter weights leave more hot nodes (docs/replay.md)",
            )
        decides = self.points * self.weight * PER_POINT
        alone = self.others // (self.weight * PER_POINT) + 1
        return (
            f"the other score plugins can prefer a node by at most {self.others}",
            f"a node that scores {self.points} points less loses {decides} by a weight of {self.weight}: "
            f"{self.points} × {self.weight} × {PER_POINT}",
            f"so it loses whatever the others score; below a difference of {alone} points they still count",
        )


def advised_weight(plugins: Sequence[ScorePlugin] = DEFAULT_PLUGINS) -> ExtenderWeight:
    """The weight that leaves the fewest hot nodes, in proportion to the most points of the other plugins."""
    others = 100 * sum(plugin.weight for plugin in plugins)
    return ExtenderWeight(max(1, math.ceil(others / _MEASURED_WITH)), 0, others)


def least_weight(
    points: int = DEFAULT_POINTS, plugins: Sequence[ScorePlugin] = DEFAULT_PLUGINS
) -> ExtenderWeight:
    """The least weight by which a node that scores `points` less than another loses against all plugins."""
    if not 1 <= points <= 100:
        raise UserError(
            f"a node cannot score {points} points less than another; "
            f"give a number from 1 to 100, such as {DEFAULT_POINTS}"
        )
    others = 100 * sum(plugin.weight for plugin in plugins)
    return ExtenderWeight(max(1, others // (points * PER_POINT) + 1), points, others)
