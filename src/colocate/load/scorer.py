"""The scores of many candidates for one pod: memoised columns, and the arithmetic of a mix of policies."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from colocate.load.demand import Demand
from colocate.load.policies import NodePolicy, RealUsage, policy
from colocate.load.settings import LoadSettings, Mix, PolicyName
from colocate.load.terms import NodeTerms

_COLUMNS = 128

K = TypeVar("K")
V = TypeVar("V")


_NO_NODE = ""
"""Stands for every name that is no node's: their values are all the same."""


class ScoreColumn(dict[str, V]):
    """Values by node, each worked out when it is first asked for; one for all names that are no node's."""

    def __init__(self, work_out: Callable[[str], V], known: Callable[[str], bool]) -> None:
        super().__init__()
        self._work_out = work_out
        self._known = known

    def __missing__(self, name: str) -> V:
        if name != _NO_NODE and not self._known(name):
            return self[_NO_NODE]
        value = self[name] = self._work_out(name)
        return value


class ScoreColumns(Generic[K, V]):
    """The columns used last. Pods of a deployment share one; it outlives bindings, which change one node each."""

    def __init__(self) -> None:
        self._columns: OrderedDict[K, ScoreColumn[V]] = OrderedDict()
        self._in_use: dict[K, ScoreColumn[V]] = {}
        """Those that were asked for since all were cleared: the others are empty."""

    def get(self, key: K, make: Callable[[], ScoreColumn[V]]) -> ScoreColumn[V]:
        column = self._columns.get(key)
        if column is None:
            column = self._columns[key] = make()
            if len(self._columns) > _COLUMNS:
                forgotten, _ = self._columns.popitem(last=False)
                self._in_use.pop(forgotten, None)
        else:
            self._columns.move_to_end(key)
        self._in_use[key] = column
        return column

    def latest(self, most: int) -> list[K]:
        """The keys of those used last, the very last at the end."""
        return list(self._columns)[-most:]

    def drop(self, names: Iterable[str]) -> None:
        """What is known of these nodes is no longer so."""
        for name in names:
            for column in self._in_use.values():
                column.pop(name, None)

    def clear(self) -> None:
        # The demands are kept: whoever deploys now will go on for a while.
        for column in self._in_use.values():
            column.clear()
        self._in_use.clear()


class Scorer:
    """A mix of policies."""

    def __init__(self, mix: Mix, settings: LoadSettings) -> None:
        self.mix = mix
        self.absolute: list[tuple[PolicyName, NodePolicy, int]] = []
        self.relative: list[tuple[PolicyName, RealUsage, int]] = []
        for part in mix:
            made = policy(part.policy, settings)
            if isinstance(made, RealUsage):
                self.relative.append((part.policy, made, part.weight))
            else:
                self.absolute.append((part.policy, made, part.weight))
        self.weights = sum(part.weight for part in mix)

    def of_node(self, node: NodeTerms, pod: Demand) -> int:
        """The weighted sum of what judges the node by itself; the very score where that is all."""
        total = 0
        for _, each, weight in self.absolute:
            total += weight * each.score(node, pod)
        return total if self.relative else total // self.weights

    def with_ranks(self, sums: Sequence[int], ranks: Sequence[Sequence[int]]) -> list[int]:
        """The candidates' scores, from the sums of `of_node` and their ranks by each relative policy."""
        totals = list(sums)
        for (_, _, weight), scores in zip(self.relative, ranks, strict=True):
            totals = [total + weight * score for total, score in zip(totals, scores, strict=True)]
        return [total // self.weights for total in totals]
