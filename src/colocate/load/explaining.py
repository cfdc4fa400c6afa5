"""Why this node: a decision put into data that people can read, from nothing but its record."""

import msgspec

from colocate.load.decision import Decision
from colocate.load.demand import Demand
from colocate.load.policies import Part
from colocate.load.scoring import Scorer
from colocate.load.settings import Mix, PolicyName, Settings
from colocate.load.terms import Freshness, NodeTerms


class PolicyReason(msgspec.Struct, frozen=True):
    """One policy's part in a score."""

    policy: PolicyName
    weight: int
    score: int | None
    """None of a policy that ranks candidates against each other: alone, a node has no such score."""
    parts: tuple[Part, ...]


class NodeReason(msgspec.Struct, frozen=True):
    """Why a node had its score."""

    node: str
    score: int | None
    freshness: Freshness
    age: float | None
    """Seconds, of the older of its samples, when it was judged."""
    unseen_pods: float
    unseen_cpu: int
    unseen_memory: int
    policies: tuple[PolicyReason, ...]

    def __str__(self) -> str:
        sample = self.freshness if self.age is None else f"sampled {self.age:.0f} s before"
        if self.freshness is Freshness.EXPIRED:
            sample = f"{sample}, too old"
        unseen = f", {self.unseen_pods:.3g} pods not in the samples yet" if self.unseen_pods else ""
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
    """The best and its runners-up."""

    @property
    def runner_up(self) -> NodeReason | None:
        return self.nodes[1] if len(self.nodes) > 1 else None

    def __str__(self) -> str:
        policies = ", ".join(
            part.policy if len(self.mix) == 1 else f"{part.policy}={part.weight}" for part in self.mix
        )
        lines = [f"{self.pod}: {self.equally_good} of {self.candidates} candidates were best by {policies}"]
        return "\n".join((*lines, *(str(node) for node in self.nodes)))


def explain(decision: Decision, settings: Settings) -> Explanation:
    """All of it follows from the record: the table may have changed since."""
    scorer = Scorer(decision.mix, settings)
    return Explanation(
        decision.key,
        decision.at,
        decision.mix,
        decision.candidates,
        decision.best_count,
        tuple(
            reason(scorer, node, decision.demand, score, decision.at)
            for node, score in zip(decision.top, decision.scores, strict=True)
        ),
    )


def reason(scorer: Scorer, node: NodeTerms, pod: Demand, score: int | None, at: float) -> NodeReason:
    """Why one node has its score."""
    absolute = tuple(
        PolicyReason(name, weight, policy.score(node, pod), policy.parts(node, pod))
        for name, policy, weight in scorer.absolute
    )
    relative = tuple(
        PolicyReason(name, weight, None, policy.parts(node)) for name, policy, weight in scorer.relative
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
