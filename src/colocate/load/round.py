"""Levels, terms and scores that follow from one round of samples, computed when asked for, or ahead in steps.

`TableState` holds the facts that outlive a round. `Round` reads it, and keeps what it computed until the table drops
it because a fact changed. `Scorer` weighs the policies of a mix.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import msgspec

from colocate.load.demand import Calibration, Demand
from colocate.load.ledger import Ledger, Unseen
from colocate.load.pods import Pods, PodTotals
from colocate.load.policies import NodePolicy, RealUsage, min_max, policy
from colocate.load.settings import LoadSettings, Mix, PolicyName
from colocate.load.terms import NOT_MEASURED, Level, Levels, NodeTerms, Typical, level, node_terms, typical
from colocate.model.load import NO_SAMPLES, NOTHING, NodeFacts, NodeLoad, Usage

_COLUMNS = 128

K = TypeVar("K")
V = TypeVar("V")


_NO_NODE = ""
"""Stands for every name that is no node's: they share one value."""


class ScoreColumn(dict[str, V]):
    """Values by node, each computed when it is first asked for; one for all names that are no node's."""

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
        """Columns that were asked for since all were cleared; the others are empty."""

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
        """The keys of the columns used last, the very last at the end."""
        return list(self._columns)[-most:]

    def drop(self, names: Iterable[str]) -> None:
        """Drop what is kept of these nodes."""
        for name in names:
            for column in self._in_use.values():
                column.pop(name, None)

    def clear(self) -> None:
        # The keys are kept: a deployment goes on for a while.
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
        """The weighted sum over policies that judge the node by itself; the score, if the mix has no others."""
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


class TableState:
    """The facts of a table. The table writes them; every round reads them as they are."""

    def __init__(self, settings: LoadSettings, calibration: Calibration) -> None:
        self.settings = settings
        self.now = 0.0
        self.nodes: dict[str, NodeFacts] = {}
        self.pods = Pods(settings, calibration)
        self.ledger = Ledger(settings.ledger)
        self.scorers: dict[Mix, Scorer] = {}
        """By mix."""

    def scorer(self, mix: Mix) -> Scorer:
        scorer = self.scorers.get(mix)
        if scorer is None:
            scorer = self.scorers[mix] = Scorer(mix, self.settings)
        return scorer


_LOG_BEYOND_NODES = 1000
"""Terms that a log may hold beyond two for every node before another is begun."""
_STEP = 100
"""Nodes in one step of work, which takes a millisecond or two."""
_DEMANDS_AHEAD = 8
"""The number of last used demands whose scores are computed ahead."""


class Round:
    """The table answers from one round; while new samples are worked in, it prepares another."""

    def __init__(self, state: TableState, loads: dict[str, NodeLoad]) -> None:
        self.loads = loads
        self.next_stale = float("inf")
        """When the next sample expires."""
        self.log: list[NodeTerms] = []
        """All terms of nodes that were made since everything changed: see `decision`."""
        self._state = state
        self._known = state.nodes.__contains__
        self._levels: dict[str, Levels] = {}
        self._typical: Typical | None = None
        self._terms: dict[str, NodeTerms] = {}
        self._columns: ScoreColumns[tuple[Mix, Demand], int] = ScoreColumns()
        """Scores, by what the pod brings."""
        self._values: ScoreColumns[PolicyName, int | None] = ScoreColumns()
        """What policies rank candidates by, whatever the pod brings."""

    def terms(self, name: str) -> NodeTerms:
        """A node's terms; of a name that is no node's, those of the typical node."""
        supposed = self._typical or self._settle()
        known = self._terms.get(name)
        if known is not None:
            return known
        state = self._state
        facts = state.nodes.get(name)
        if facts is None:
            nameless = msgspec.structs.replace(supposed.size, name=name)
            return node_terms(nameless, state.settings, supposed)
        made = self._terms[name] = self._made(facts, supposed, state.ledger.unseen(name, state.pods.usage))
        self._write(made)
        return made

    def bound_terms(self, name: str) -> NodeTerms:
        """A node's terms by the pods that are bound there alone. Computed each time: they are seldom asked for."""
        supposed = self._typical or self._settle()
        state = self._state
        bound = state.ledger.unseen(name, state.pods.usage, assumed=False)
        return self._made(state.nodes[name], supposed, bound)

    def _made(self, facts: NodeFacts, supposed: Typical, unseen: Unseen) -> NodeTerms:
        state, name = self._state, facts.name
        load = self.loads.get(name, NO_SAMPLES)
        sampled_at = state.settings.staleness.sampled_at(load, state.now)
        return node_terms(
            facts,
            state.settings,
            supposed,
            load=load,
            levels=self._levels.get(name, NOT_MEASURED),
            sampled_at=sampled_at,
            unseen=unseen,
            pods=state.pods.measured(name, sampled_at),
            placed=_with_assumed(state.pods.on(name), unseen),
        )

    def scores(self, mix: Mix, pod: Demand, names: Sequence[str]) -> list[int]:
        """The candidates' scores, in their order."""
        if self._typical is None:
            self._settle()
        scorer = self._state.scorer(mix)
        if not scorer.absolute:
            sums = [0] * len(names)
        else:
            column = self._column(scorer, pod)
            sums = list(map(column.__getitem__, names))
            if not scorer.relative:
                return sums
        ranks = [self._ranks(name, policy, names) for name, policy, _ in scorer.relative]
        return scorer.with_ranks(sums, ranks)

    def work_ahead(self, before: "Round", now: float) -> Iterator[None]:
        """Compute what the next requests will likely ask for, judging by those of the round before.

        What changes meanwhile is computed by the request that needs it.
        """
        yield from self._settling(now)
        every = steps(list(self._state.nodes))
        for step in every:
            for name in step:
                self.terms(name)
            yield
        columns: list[ScoreColumn[int] | ScoreColumn[int | None]] = [
            self._column(self._state.scorer(mix), pod) for mix, pod in before._columns.latest(_DEMANDS_AHEAD)
        ]
        for scorer in self._state.scorers.values():
            columns += [self._value_column(name, policy) for name, policy, _ in scorer.relative]
        for column in columns:
            for step in every:
                for name in step:
                    column[name]
                yield

    def drop(self, names: Iterable[str]) -> None:
        """Drop what is kept of these nodes."""
        for name in names:
            self._terms.pop(name, None)
        self._columns.drop(names)
        self._values.drop(names)

    def clear(self) -> None:
        """Drop all but the samples."""
        self._typical = None
        self._terms.clear()
        self.log = []
        self._columns.clear()
        self._values.clear()

    def _ranks(self, name: PolicyName, policy: RealUsage, names: Sequence[str]) -> list[int]:
        column = self._value_column(name, policy)
        return min_max(list(map(column.__getitem__, names)))

    def _column(self, scorer: Scorer, pod: Demand) -> ScoreColumn[int]:
        return self._columns.get(
            (scorer.mix, pod),
            lambda: ScoreColumn(lambda name: scorer.of_node(self.terms(name), pod), self._known),
        )

    def _value_column(self, name: PolicyName, policy: RealUsage) -> ScoreColumn[int | None]:
        return self._values.get(
            name, lambda: ScoreColumn(lambda node: policy.value(self.terms(node)), self._known)
        )

    def _write(self, made: NodeTerms) -> None:
        if len(self.log) > 2 * len(self._state.nodes) + _LOG_BEYOND_NODES:
            # Earlier answers keep the old log. Answers from now on need not hold all of it.
            self.log = list(self._terms.values())
        else:
            self.log.append(made)

    def _settle(self) -> Typical:
        """Compute the levels of all nodes, the typical node, and when the next sample expires."""
        for _ in self._settling(self._state.now):
            pass
        assert self._typical is not None
        return self._typical

    def _settling(self, now: float) -> Iterator[None]:
        self.next_stale = float("inf")
        self._levels = {}
        for number, name in enumerate(list(self._state.nodes)):
            load = self.loads.get(name)
            if load is not None:
                self._levels[name] = self._level(load.cpu, now), self._level(load.memory, now)
            if number % _STEP == 0:
                yield
        self._typical = typical(
            [cpu for cpu, _ in self._levels.values() if cpu],
            [memory for _, memory in self._levels.values() if memory],
            self._state.nodes.values(),
        )
        yield

    def _level(self, usage: Usage | None, now: float) -> Level | None:
        settings = self._state.settings
        staleness = settings.staleness
        if usage is None or staleness.expired(now - usage.time):
            return None
        if staleness.after and usage.time + staleness.after < self.next_stale:
            self.next_stale = usage.time + staleness.after
        return level(usage, settings.balanced)


def _with_assumed(placed: PodTotals, unseen: Unseen) -> PodTotals:
    """Add the requests of pods that are assumed on the node."""
    if unseen.requested == NOTHING and unseen.limits == NOTHING and unseen.assumed == NOTHING:
        return placed
    return msgspec.structs.replace(
        placed,
        requested=placed.requested + unseen.requested,
        limits=placed.limits + unseen.limits,
        estimates=placed.estimates + unseen.assumed,
    )


def steps(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[start : start + _STEP] for start in range(0, len(names), _STEP)]
