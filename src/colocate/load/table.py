"""The table: takes facts in, and drops from its `Round` what no longer follows from them.

A changed pod costs the work for its node, a batch of samples the work for every node. A request costs one look-up per
candidate, once a pod of the same demand has been judged. New samples can be worked in step by step, beside the round
that answers requests, so that no request waits for them. Time is an argument.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from colocate.load.demand import Calibration, Demand, Ratio
from colocate.load.ledger import Ledger
from colocate.load.round import Round, Scorer, TableState, steps
from colocate.load.settings import LoadSettings, Mix
from colocate.load.terms import NodeTerms
from colocate.model.load import NO_SAMPLES, BoundPod, NodeFacts, NodeLoad, PodFacts, PodUsage


class LoadTable:
    """Nodes, samples and pods in; terms and scores out."""

    def __init__(self, settings: LoadSettings, calibration: Calibration | None = None) -> None:
        state = self._state = TableState(settings, calibration or Calibration())
        self.settings = settings
        self.pods = state.pods
        self._nodes = state.nodes
        self._ledger = state.ledger
        self._round = Round(state, {})
        self._coming: Round | None = None

    # --- facts come in ---------------------------------------------------------------------------------

    def add_nodes(self, nodes: Iterable[NodeFacts]) -> None:
        """Nodes that are new, or changed."""
        changed = [node for node in nodes if self._nodes.get(node.name) != node]
        judge_again = any(not node.judged_like(self._nodes.get(node.name)) for node in changed)
        self._nodes.update((node.name, node) for node in changed)
        if judge_again:
            self._everything_changed()

    def remove_node(self, name: str) -> None:
        if self._nodes.pop(name, None) is not None:
            self._round.loads.pop(name, None)
            self._everything_changed()

    def observe(self, loads: Mapping[str, NodeLoad], now: float) -> None:
        """Samples of some or all nodes; a node that is not among them keeps what it has, until it expires."""
        self._round.loads = self._with(loads)
        self.pods.forget_departed(now)
        self._leave_what_is_shown(loads, now)
        self._everything_changed()
        self.advance(now)

    def observing(
        self, loads: Mapping[str, NodeLoad], now: float, usages: Mapping[str, PodUsage] | None = None
    ) -> Iterator[None]:
        """Take in samples, and what single pods use, in short steps; answers stay as before until the last step.

        If everything changes meanwhile, for example a node, the rest is taken in at once and computed when asked for.
        """
        self.advance(now)
        if usages is not None:
            self.pods.take_usages(usages)
            yield from self.pods.learning()
        self.pods.forget_departed(now)
        coming = self._coming = Round(self._state, self._with(loads))
        for _ in coming.work_ahead(self._round, now):
            yield
            if self._coming is not coming:
                self.observe(loads, self.now)
                return
        self._round, self._coming = coming, None
        self.advance(self.now)
        # Pods that the samples show now count twice for some steps, which is better than not at all.
        for step in steps([name for name in loads if name in self._ledger.nodes]):
            self._changed(*self._leave_what_is_shown(step, self.now))
            yield

    def observe_pods(self, usages: Mapping[str, PodUsage]) -> None:
        """The measured use of pods, by uid; pods that are missing here are no longer measured."""
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
        bound = self.pods.remove(uid, self.now)
        touched = self._ledger.end(uid)
        self._changed(*touched, *((bound.node,) if bound else ()))

    def assume(
        self, uid: str, nodes: Sequence[str], demand: Demand, now: float, vouched_by: str = ""
    ) -> None:
        """A pod was judged, and these nodes came out best for it."""
        if self.pods.get(uid) is None:
            self._changed(*self._ledger.assume(uid, nodes, demand, now, vouched_by))

    def withdraw(self, uid: str) -> None:
        """Drop what was assumed of a pod that is judged again: it would count against itself."""
        self._changed(*self._ledger.withdraw(uid))

    def advance(self, now: float) -> None:
        """Time has passed: samples and entries of the ledger may have expired.

        After a clock that was ahead is set back, what counted as expired counts again, and nothing lies in the
        future.
        """
        was, self._state.now = self._state.now, now
        if now < was:
            self._set_back()
        self._changed(*self._ledger.expire(now))
        if now >= self._round.next_stale:
            self._everything_changed()

    # --- what follows from them ------------------------------------------------------------------------

    def demand(self, pod: PodFacts) -> Demand:
        """The pod's demand, corrected by what its owner's pods have used so far."""
        return self.pods.demand(pod)

    def terms(self, name: str) -> NodeTerms:
        """A node's terms; of a name that is no node's, those of the typical node."""
        return self._round.terms(name)

    def bound_terms(self, name: str) -> NodeTerms:
        """A node's terms without pods that are only assumed there: any caller can make up such pods."""
        return self._round.bound_terms(name) if self._ledger.assumes(name) else self._round.terms(name)

    def scores(self, mix: Mix, pod: Demand, names: Sequence[str]) -> list[int]:
        """The candidates' scores, in their order."""
        return self._round.scores(mix, pod, names)

    def scorer(self, mix: Mix) -> Scorer:
        return self._state.scorer(mix)

    @property
    def now(self) -> float:
        return self._state.now

    @property
    def nodes(self) -> Mapping[str, NodeFacts]:
        return self._nodes

    @property
    def loads(self) -> Mapping[str, NodeLoad]:
        return self._round.loads

    @property
    def log(self) -> list[NodeTerms]:
        """All terms that answers were given by since everything changed: see `decision`."""
        return self._round.log

    @property
    def ledger(self) -> Ledger:
        """For reading; only the table writes it."""
        return self._ledger

    # --- keeping it up to date ---------------------------------------------------------------------------------

    def _with(self, loads: Mapping[str, NodeLoad]) -> dict[str, NodeLoad]:
        """All samples, those of nodes that are gone apart."""
        kept = {name: load for name, load in self.loads.items() if name in self._nodes}
        return {**kept, **loads}

    def _changed(self, *names: str) -> None:
        if not names:
            return
        self._round.drop(names)
        if self._coming is not None:
            self._coming.drop(names)

    def _everything_changed(self) -> None:
        self._round.clear()
        self._coming = None

    def _set_back(self) -> None:
        for bound in self.pods.bound.values():
            if self._counts(bound):
                self._enter(bound, unseen=True)
        self._ledger.set_back(self.now)
        self._everything_changed()

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
        """Remove pods that samples show from the ledger; returns the nodes they were on."""
        left = []
        for name in names:
            sampled_at = self._sampled_at(name, now)
            if sampled_at is not None and self._ledger.shows(name, sampled_at, self.pods.usage):
                left.append(name)
        return left

    def _sampled_at(self, name: str, now: float) -> float | None:
        return self.settings.staleness.sampled_at(self.loads.get(name, NO_SAMPLES), now)
