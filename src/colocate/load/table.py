"""The table: every node's terms, kept up to date with the facts, and the scores that follow from them.

A change of a fact costs what it touches: a pod its node, a batch of samples every node. A request costs one
look-up per candidate, once a pod of the same demand has been judged. Time is an argument.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from colocate.load import building
from colocate.load.building import NOT_MEASURED, Levels
from colocate.load.calibration import Calibration
from colocate.load.demand import Demand, Ratio
from colocate.load.ledger import Ledger
from colocate.load.placing import Pods
from colocate.load.policies import RealUsage, min_max
from colocate.load.scoring import Column, Columns, Scorer
from colocate.load.settings import Mix, PolicyName, Settings
from colocate.load.terms import NodeTerms
from colocate.load.typical import Level, Typical, level, typical
from colocate.model.load import NO_SAMPLES, BoundPod, NodeFacts, NodeLoad, PodFacts, PodUsage, Usage

_LOG_BEYOND_NODES = 1000
"""How many terms may be made anew, beyond one for every node, until a log is begun again."""


class Table:
    """Nodes, samples and pods in; terms and scores out."""

    def __init__(self, settings: Settings, calibration: Calibration | None = None) -> None:
        self.settings = settings
        self.now = 0.0
        self.pods = Pods(settings, calibration or Calibration())
        self._nodes: dict[str, NodeFacts] = {}
        self._loads: dict[str, NodeLoad] = {}
        self._ledger = Ledger(settings.ledger)
        self._levels: dict[str, Levels] = {}
        self._typical: Typical | None = None
        self._next_stale = float("inf")
        self._terms: dict[str, NodeTerms] = {}
        self.log: list[NodeTerms] = []
        """All terms of nodes that were made since everything changed: see `candidates`."""
        self._columns: Columns[tuple[Mix, Demand], int] = Columns()
        """Scores, by what the pod brings."""
        self._values: Columns[PolicyName, int | None] = Columns()
        """What policies rank candidates by, whatever the pod brings."""
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
            self._loads.pop(name, None)
            self._everything_changed()

    def observe(self, loads: Mapping[str, NodeLoad], now: float) -> None:
        """Samples of some or all nodes; a node that is not among them keeps what it has, until it expires."""
        gone = [name for name in self._loads if name not in self._nodes and name not in loads]
        for name in gone:
            del self._loads[name]
        self._loads.update(loads)
        self._leave_what_is_shown(loads, now)
        self._everything_changed()
        self.advance(now)

    def observe_pods(self, usages: Mapping[str, PodUsage]) -> None:
        """What single pods, by uid, are measured to use; those that are not among them are measured no more."""
        self.pods.measure(usages)
        self._leave_what_is_shown(self._loads, self.now)
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
        if self.now >= self._next_stale:
            self._everything_changed()

    # --- what follows from them ------------------------------------------------------------------------

    def demand(self, pod: PodFacts) -> Demand:
        """What the pod brings, by what its owner's pods have used so far."""
        return self.pods.demand(pod)

    def terms(self, name: str) -> NodeTerms:
        """A node's terms; of a name that is no node's, those of the typical node."""
        supposed = self._typical or self._settle()
        known = self._terms.get(name)
        if known is not None:
            return known
        facts = self._nodes.get(name)
        if facts is None:
            nameless = msgspec.structs.replace(supposed.size, name=name)
            return building.terms(nameless, self.settings, supposed)
        made = self._terms[name] = building.terms(
            facts,
            self.settings,
            supposed,
            load=self._loads.get(name, NO_SAMPLES),
            levels=self._levels.get(name, NOT_MEASURED),
            sampled_at=self._sampled_at(name, self.now),
            unseen=self._ledger.unseen(name, self.pods.usage),
            placed=self.pods.on(name),
        )
        self._write(made)
        return made

    def scores(self, mix: Mix, pod: Demand, names: Sequence[str]) -> list[int]:
        """The candidates' scores, in their order."""
        if self._typical is None:
            self._settle()
        scorer = self.scorer(mix)
        if not scorer.absolute:
            sums = [0] * len(names)
        else:
            column = self._columns.get(
                (mix, pod),
                lambda: Column(lambda name: scorer.of_node(self.terms(name), pod), self._nodes.__contains__),
            )
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
        return self._loads

    @property
    def ledger(self) -> Ledger:
        """To be read; it is written here alone."""
        return self._ledger

    # --- keeping it so ---------------------------------------------------------------------------------

    def _ranks(self, name: PolicyName, policy: RealUsage, names: Sequence[str]) -> list[int]:
        column = self._values.get(
            name, lambda: Column(lambda node: policy.value(self.terms(node)), self._nodes.__contains__)
        )
        return min_max(list(map(column.__getitem__, names)))

    def _changed(self, *names: str) -> None:
        for name in names:
            self._terms.pop(name, None)
        self._columns.drop(names)
        self._values.drop(names)

    def _everything_changed(self) -> None:
        self._typical = None
        self._terms.clear()
        self.log = []
        self._columns.clear()
        self._values.clear()

    def _write(self, made: NodeTerms) -> None:
        if len(self.log) > 2 * len(self._nodes) + _LOG_BEYOND_NODES:
            # Whoever remembers the old one still can; nobody needs to hold all of it for one answer.
            self.log = list(self._terms.values())
        else:
            self.log.append(made)

    def _set_back(self) -> None:
        for bound in self.pods.bound.values():
            if self._counts(bound):
                self._enter(bound, unseen=True)
        self._ledger.set_back(self.now)
        self._everything_changed()

    def _settle(self) -> Typical:
        """How loaded nodes are by fresh samples, the typical one too, and when the next sample is too old."""
        self._next_stale = float("inf")
        self._levels = {
            name: (self._level(self._loads[name].cpu), self._level(self._loads[name].memory))
            for name in self._nodes
            if name in self._loads
        }
        self._typical = typical(
            [cpu for cpu, _ in self._levels.values() if cpu],
            [memory for _, memory in self._levels.values() if memory],
            self._nodes.values(),
        )
        return self._typical

    def _level(self, usage: Usage | None) -> Level | None:
        staleness = self.settings.staleness
        if usage is None or staleness.expired(self.now - usage.time):
            return None
        if staleness.after and usage.time + staleness.after < self._next_stale:
            self._next_stale = usage.time + staleness.after
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

    def _leave_what_is_shown(self, names: Iterable[str], now: float) -> None:
        for name in names:
            sampled_at = self._sampled_at(name, now)
            if sampled_at is not None:
                self.pods.learn(self._ledger.shows(name, sampled_at, self.pods.usage))

    def _sampled_at(self, name: str, now: float) -> float | None:
        return self.settings.staleness.sampled_at(self._loads.get(name, NO_SAMPLES), now)
