"""Why this node, and why not that one: a decision put into data that people can read, from nothing but its record."""

from collections.abc import Mapping, Sequence

import msgspec

from colocate.load.decision import Candidates, PodDecision
from colocate.load.demand import Demand
from colocate.load.policies import ScorePart, min_max
from colocate.load.round import Scorer
from colocate.load.settings import LoadSettings, Mix, PolicyName
from colocate.load.terms import Freshness, NodeTerms


class PolicyReason(msgspec.Struct, frozen=True):
    """One policy's part in a score."""

    policy: PolicyName
    weight: int
    score: int | None
    """None for a policy that ranks candidates against each other once some of them were dropped."""
    parts: tuple[ScorePart, ...]


class NodeReason(msgspec.Struct, frozen=True):
    """Why a node had its score."""

    node: str
    score: int | None
    freshness: Freshness | None = None
    """None, as are all further fields, where only the score is kept."""
    age: float | None = None
    """Seconds, of the older of its samples, when it was judged."""
    unseen_pods: float = 0.0
    unseen_cpu: int = 0
    unseen_memory: int = 0
    policies: tuple[PolicyReason, ...] = ()

    def __str__(self) -> str:
        if self.freshness is None:
            return f"{self.node} {self.score}"
        sample = self.freshness if self.age is None else f"sampled {self.age:.0f} s before"
        if self.freshness is Freshness.EXPIRED:
            sample = f"{sample}, too old"
        unseen = f", {self.unseen_pods:.3g} pods that samples do not show yet" if self.unseen_pods else ""
        parts = "; ".join(
            f"{reason.policy}: {', '.join(str(part) for part in reason.parts)}" for reason in self.policies
        )
        return f"{self.node} {'' if self.score is None else f'{self.score} '}({sample}{unseen}): {parts}"


class Explanation(msgspec.Struct, frozen=True):
    """The answer to "why this node"."""

    pod: str
    at: float
    mix: Mix
    candidates: int
    equally_good: int
    nodes: tuple[NodeReason, ...]
    """The best first: it and its runners-up, or those that were asked for."""

    @property
    def refused(self) -> bool:
        """Whether the filter has left no candidate to choose from."""
        return self.candidates > 0 and not self.equally_good

    @property
    def runner_up(self) -> NodeReason | None:
        return self.nodes[1] if len(self.nodes) > 1 else None

    def __str__(self) -> str:
        if self.refused:
            return f"{self.pod}: refused on all {self.candidates} candidates"
        policies = ", ".join(
            part.policy if len(self.mix) == 1 else f"{part.policy}={part.weight}" for part in self.mix
        )
        lines = [f"{self.pod}: {self.equally_good} of {self.candidates} candidates were best by {policies}"]
        return "\n".join((*lines, *(str(node) for node in self.nodes)))


def explain(
    decision: PodDecision, settings: LoadSettings, candidates: Candidates | None = None
) -> Explanation:
    """The best and its runners-up. All of it follows from the record: the table may have changed since."""
    scores = dict(zip((node.name for node in decision.top), decision.scores, strict=True))
    return _explanation(decision, settings, candidates or Candidates(), scores)


def explain_node(
    decision: PodDecision, settings: LoadSettings, candidates: Candidates, node: str
) -> Explanation | None:
    """Why one candidate had its score, beside the best; None where it was none, or it is no longer known."""
    scores = _all_scores(decision, candidates)
    if node not in scores:
        return None
    compared = dict.fromkeys((decision.top[0].name, node)) if decision.top else {node: None}
    return _explanation(decision, settings, candidates, {name: scores[name] for name in compared})


def explain_all(decision: PodDecision, settings: LoadSettings, candidates: Candidates) -> Explanation:
    """Why every candidate had its score, the best first; the few best where no others are known any more."""
    scores = _all_scores(decision, candidates)
    ordered = dict(sorted(scores.items(), key=lambda scored: -scored[1]))
    return _explanation(decision, settings, candidates, ordered)


def _all_scores(decision: PodDecision, candidates: Candidates) -> Mapping[str, int]:
    top = dict(zip((node.name for node in decision.top), decision.scores, strict=True))
    return candidates.by_name() or top


def _explanation(
    decision: PodDecision, settings: LoadSettings, candidates: Candidates, scores: Mapping[str, int]
) -> Explanation:
    scorer = Scorer(decision.mix, settings)
    terms = {**candidates.terms(), **{node.name: node for node in decision.top}}
    ranks = _ranks(scorer, [terms.get(name) for name in candidates.by_name()])
    return Explanation(
        decision.key,
        decision.at,
        decision.mix,
        decision.candidates,
        decision.best_count,
        tuple(
            reason(scorer, terms[name], decision.demand, score, decision.at, ranks)
            if name in terms
            else NodeReason(name, score)
            for name, score in scores.items()
        ),
    )


Ranks = Mapping[PolicyName, Mapping[str, int]]
"""Ranks of the candidates, by policy that ranks them against each other."""


def _ranks(scorer: Scorer, nodes: Sequence[NodeTerms | None]) -> Ranks:
    known = [node for node in nodes if node is not None]
    if len(known) < len(nodes):
        return {}
    return {
        name: dict(
            zip((node.name for node in known), min_max([policy.value(node) for node in known]), strict=True)
        )
        for name, policy, _ in scorer.relative
    }


def reason(
    scorer: Scorer, node: NodeTerms, pod: Demand, score: int | None, at: float, ranks: Ranks
) -> NodeReason:
    """Why one node has its score."""
    absolute = tuple(
        PolicyReason(name, weight, policy.score(node, pod), policy.parts(node, pod))
        for name, policy, weight in scorer.absolute
    )
    relative = tuple(
        PolicyReason(name, weight, ranks.get(name, {}).get(node.name), policy.parts(node))
        for name, policy, weight in scorer.relative
    )
    return NodeReason(
        node.name,
        score,
        node.freshness,
        None if node.sampled_at is None else at - node.sampled_at,
        node.unseen_pods,
        node.cpu.ledger,
        node.memory.ledger,
        (*absolute, *relative),
    )
