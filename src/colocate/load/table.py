"""The table: every node's terms, kept up to date with the facts, and the scores that follow from them.

A change of a fact costs what it touches: a pod its node, a batch of samples every node. A request costs one
look-up per candidate, once a pod of the same demand has been judged. New samples can be worked in step by step,
beside what is known, so that no request pays for them. Time is an argument.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from colocate.load import building
from colocate.load.building import NOT_MEASURED
from colocate.load.calibration import Calibration
from colocate.load.demand import Demand, Ratio
from colocate.load.ledger import Ledger
from colocate.load.placing import Pods
from colocate.load.policies import RealUsage, min_max
from colocate.load.round import Round
from colocate.load.scoring import Column, Scorer
from colocate.load.settings import Mix, PolicyName, Settings
from colocate.load.terms import NodeTerms
from colocate.load.typical import Level, Typical, level, typical
from colocate.model.load import NO_SAMPLES, BoundPod, NodeFacts, NodeLoad, PodFacts, PodUsage, Usage

_LOG_BEYOND_NODES = 1000
"""How many terms may be made anew, beyond one for every node, until a log is begun again."""
_STEP = 100
"""Nodes that one step of working in samples looks at: a millisecond or two."""
_DEMANDS_AHEAD = 8
"""Of so many demands, those of the pods judged last, the scores are worked out ahead."""


class Table:
    """Nodes, samples and pods in; terms and scores out."""

    def __init__(self, settings: Settings, calibration: Calibration | None = None) -> None:
        self.settings = settings
        self.now = 0.0
        self.pods = Pods(settings, calibration or Calibration())
        self._nodes: dict[str, NodeFacts] = {}
        self._ledger = Ledger(settings.ledger)
        self._round = Round({})
        self._coming: Round | None = None
        self._scorers: dict[Mix, Scorer] = {}

    # --- facts come in ---------------------------------------------------------------------------------

    def add_nodes(self, nodes: Iterable[NodeFacts]) -> None:
        """Nodes that are new, or changed."""
        changed = [node for node in nodes if self._nodes.get(node.name) != node]
        if changed:
            self._nodes.update((node.name, node) for node in changed)
            self._everything_changed()

    def remove_node(self, name: str) -> None:
        if self._nodes.pop(name, None) is not None:
            self._round.loads.pop(name, None)
            self._everything_changed()

    def observe(self, loads: Mapping[str, NodeLoad], now: float) -> None:
        """Samples of some or all nodes; a node that is not among them keeps what it has, until it expires."""
        self._round.loads = self._with(loads)
        self._leave_what_is_shown(loads, now)
        self._everything_changed()
        self.advance(now)

    def observing(
        self, loads: Mapping[str, NodeLoad], now: float, usages: Mapping[str, PodUsage] | None = None
    ) -> Iterator[None]:
        """The same in short steps, with what single pods use: until all is worked out, answers are as before.

        Where everything changes meanwhile, nodes for one, the rest is done at once, and worked out when asked for.
        """
        self.advance(now)
        if usages is not None:
            self.pods.measure(usages)
        coming = self._coming = Round(self._with(loads))
        for _ in self._work_ahead(coming, now):
            yield
            if self._coming is not coming:
                self.observe(loads, self.now)
                return
        self._round, self._coming = coming, None
        self.advance(self.now)
        # What the samples show now is counted twice for some steps more, which is better than not at all.
        for step in _steps([name for name in loads if name in self._ledger.nodes]):
            self._changed(*self._leave_what_is_shown(step, self.now))
            yield

    def observe_pods(self, usages: Mapping[str, PodUsage]) -> None:
        """What single pods, by uid, are measured to use; those that are not among them are measured no more."""
        self.pods.measure(usages)
        self._leave_what_is_shown(self.loads, self.now)
        self._everything_changed()

    def bind(self, bound: BoundPod) -> None:
        """A pod is seen on its node, now or long since."""
        before = self.pods.get(bound.pod.uid)
        if self.pods.add(bound):
            if before is not None:
                self._changed(before.node)
            self._enter(bound, unseen=self._counts(bound))

    def restore(self, bound: BoundPod, correction: Ratio, *, unseen: bool) -> None:
        """A pod as it was known before: how its estimate was corrected, whether the ledger had it."""
        self.pods.add(bound, correction)
        self._enter(bound, unseen=unseen)

    def end(self, uid: str) -> None:
        """A pod has ended, or will not come."""
        bound = self.pods.remove(uid)
        touched = self._ledger.end(uid)
        self._changed(*touched, *((bound.node,) if bound else ()))

    def assume(self, uid: str, nodes: Sequence[str], demand: Demand, now: float) -> None:
        """A pod was judged, and these nodes came out best for it."""
        if self.pods.get(uid) is None:
            self._changed(*self._ledger.assume(uid, nodes, demand, now))

    def advance(self, now: float) -> None:
        """Time has passed: samples and entries of the ledger may have expired.

        A clock that was ahead is set right: what counted as expired counts again, and nothing is of the future.
        """
        was, self.now = self.now, now
        if now < was:
            self._set_back()
        self._changed(*self._ledger.expire(self.now))
        if self.now >= self._round.next_stale:
            self._everything_changed()

    # --- what follows from them ------------------------------------------------------------------------

    def demand(self, pod: PodFacts) -> Demand:
        """What the pod brings, by what its owner's pods have used so far."""
        return self.pods.demand(pod)

    def terms(self, name: str) -> NodeTerms:
        """A node's terms; of a name that is no node's, those of the typical node."""
        return self._terms(self._round, name)

    def _terms(self, at: Round, name: str) -> NodeTerms:
        supposed = at.typical or self._settle(at, self.now)
        known = at.terms.get(name)
        if known is not None:
            return known
        facts = self._nodes.get(name)
        if facts is None:
            nameless = msgspec.structs.replace(supposed.size, name=name)
            return building.terms(nameless, self.settings, supposed)
        load = at.loads.get(name, NO_SAMPLES)
        made = at.terms[name] = building.terms(
            facts,
            self.settings,
            supposed,
            load=load,
            levels=at.levels.get(name, NOT_MEASURED),
            sampled_at=self.settings.staleness.sampled_at(load, self.now),
            unseen=self._ledger.unseen(name, self.pods.usage),
            placed=self.pods.on(name),
        )
        self._write(at, made)
        return made

    def scores(self, mix: Mix, pod: Demand, names: Sequence[str]) -> list[int]:
        """The candidates' scores, in their order."""
        at = self._round
        if at.typical is None:
            self._settle(at, self.now)
        scorer = self.scorer(mix)
        if not scorer.absolute:
            sums = [0] * len(names)
        else:
            column = self._column(at, mix, pod)
            sums = list(map(column.__getitem__, names))
            if not scorer.relative:
                return sums
        ranks = [self._ranks(name, policy, names) for name, policy, _ in scorer.relative]
        return scorer.with_ranks(sums, ranks)

    def scorer(self, mix: Mix) -> Scorer:
        scorer = self._scorers.get(mix)
        if scorer is None:
            scorer = self._scorers[mix] = Scorer(mix, self.settings)
        return scorer

    @property
    def nodes(self) -> Mapping[str, NodeFacts]:
        return self._nodes

    @property
    def loads(self) -> Mapping[str, NodeLoad]:
        return self._round.loads

    @property
    def log(self) -> list[NodeTerms]:
        """All terms that answers were given by since everything changed: see `candidates`."""
        return self._round.log

    @property
    def ledger(self) -> Ledger:
        """To be read; it is written here alone."""
        return self._ledger

    # --- keeping it so ---------------------------------------------------------------------------------

    def _ranks(self, name: PolicyName, policy: RealUsage, names: Sequence[str]) -> list[int]:
        column = self._value_column(self._round, name, policy)
        return min_max(list(map(column.__getitem__, names)))

    def _column(self, at: Round, mix: Mix, pod: Demand) -> Column[int]:
        scorer = self.scorer(mix)
        return at.columns.get(
            (mix, pod),
            lambda: Column(lambda name: scorer.of_node(self._terms(at, name), pod), self._nodes.__contains__),
        )

    def _value_column(self, at: Round, name: PolicyName, policy: RealUsage) -> Column[int | None]:
        return at.values.get(
            name, lambda: Column(lambda node: policy.value(self._terms(at, node)), self._nodes.__contains__)
        )

    def _work_ahead(self, coming: Round, now: float) -> Iterator[None]:
        """All that the next requests will likely ask for; what changes meanwhile is left to them."""
        for _ in self._settling(coming, now):
            yield
        steps = _steps(list(self._nodes))
        for step in steps:
            for name in step:
                self._terms(coming, name)
            yield
        columns: list[Column[int] | Column[int | None]] = [
            self._column(coming, *key) for key in self._round.columns.latest(_DEMANDS_AHEAD)
        ]
        for mix in self._scorers.values():
            columns += [self._value_column(coming, name, policy) for name, policy, _ in mix.relative]
        for column in columns:
            for step in steps:
                for name in step:
                    column[name]
                yield

    def _with(self, loads: Mapping[str, NodeLoad]) -> dict[str, NodeLoad]:
        """All samples, those of nodes that are gone apart."""
        kept = {name: load for name, load in self.loads.items() if name in self._nodes}
        return {**kept, **loads}

    def _changed(self, *names: str) -> None:
        self._round.drop(names)
        if self._coming is not None:
            self._coming.drop(names)

    def _everything_changed(self) -> None:
        self._round.clear()
        self._coming = None

    def _write(self, at: Round, made: NodeTerms) -> None:
        if len(at.log) > 2 * len(self._nodes) + _LOG_BEYOND_NODES:
            # Whoever remembers the old one still can; nobody needs to hold all of it for one answer.
            at.log = list(at.terms.values())
        else:
            at.log.append(made)

    def _set_back(self) -> None:
        for bound in self.pods.bound.values():
            if self._counts(bound):
                self._enter(bound, unseen=True)
        self._ledger.set_back(self.now)
        self._everything_changed()

    def _settle(self, at: Round, now: float) -> Typical:
        """How loaded nodes are by fresh samples, the typical one too, and when the next sample is too old."""
        for _ in self._settling(at, now):
            pass
        assert at.typical is not None
        return at.typical

    def _settling(self, at: Round, now: float) -> Iterator[None]:
        at.next_stale = float("inf")
        at.levels = {}
        for number, name in enumerate(list(self._nodes)):
            load = at.loads.get(name)
            if load is not None:
                at.levels[name] = self._level(at, load.cpu, now), self._level(at, load.memory, now)
            if number % _STEP == 0:
                yield
        at.typical = typical(
            [cpu for cpu, _ in at.levels.values() if cpu],
            [memory for _, memory in at.levels.values() if memory],
            self._nodes.values(),
        )
        yield

    def _level(self, at: Round, usage: Usage | None, now: float) -> Level | None:
        staleness = self.settings.staleness
        if usage is None or staleness.expired(now - usage.time):
            return None
        if staleness.after and usage.time + staleness.after < at.next_stale:
            at.next_stale = usage.time + staleness.after
        return level(usage, self.settings.balanced)

    def _enter(self, bound: BoundPod, *, unseen: bool) -> None:
        uid, node = bound.pod.uid, bound.node
        if unseen:
            self._changed(node, *self._ledger.bind(uid, node, self.pods.demand_of(uid), bound.bound_at))
        else:
            self._changed(node, *self._ledger.end(uid))

    def _counts(self, bound: BoundPod) -> bool:
        """Whether the pod belongs into the ledger: neither shown by a sample nor there for too long."""
        ledger = self.settings.ledger
        if ledger.expiry and self.now >= bound.bound_at + ledger.expiry:
            return False
        sampled_at = self._sampled_at(bound.node, self.now)
        if sampled_at is None or bound.bound_at > sampled_at - ledger.window:
            return True
        return ledger.wait_for_pod_usage and self.pods.usage(bound.pod.uid) is None

    def _leave_what_is_shown(self, names: Iterable[str], now: float) -> list[str]:
        """Those of the nodes where pods have left the ledger."""
        left = []
        for name in names:
            sampled_at = self._sampled_at(name, now)
            if sampled_at is not None and (shown := self._ledger.shows(name, sampled_at, self.pods.usage)):
                self.pods.learn(shown)
                left.append(name)
        return left

    def _sampled_at(self, name: str, now: float) -> float | None:
        return self.settings.staleness.sampled_at(self.loads.get(name, NO_SAMPLES), now)


def _steps(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[start : start + _STEP] for start in range(0, len(names), _STEP)]
