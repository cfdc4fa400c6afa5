"""Decides which pods of lower priority to remove from which node so that a pod fits. Pure; returns a plan.

Simplified: every node is considered, and extenders are not asked. Pods that are already terminating count until
they are gone.
"""

from collections.abc import Mapping, Sequence

import msgspec

from colocate.lab.api.selectors import LabelSelector
from colocate.lab.scheduler import messages
from colocate.lab.scheduler.cluster import ClusterNode
from colocate.lab.scheduler.facts import SchedulablePod
from colocate.lab.scheduler.filters import Rejection, check

_ABOVE_ALL = 2**31
"""Added to every priority, so that more victims cost more than fewer, even with negative priorities."""


class Budget(msgspec.Struct, frozen=True, eq=False):
    """How many more pods of a selection may be disrupted."""

    namespace: str
    selector: LabelSelector
    allowed: int

    def covers(self, pod: SchedulablePod) -> bool:
        return self.namespace == pod.namespace and self.selector.matches(pod.labels)


class PreemptionPlan(msgspec.Struct, frozen=True, eq=False):
    """Remove these pods from this node."""

    node: str
    victims: tuple[SchedulablePod, ...]
    violations: int
    """How many of the victims a disruption budget protects."""

    def cost(self) -> tuple[int, int, int, int, float]:
        """The cost, lower is better: violated budgets, then the victims' priorities, then how long they ran."""
        highest = max(pod.priority for pod in self.victims)
        return (
            self.violations,
            highest,
            sum(pod.priority + _ABOVE_ALL for pod in self.victims),
            len(self.victims),
            -min(pod.started for pod in self.victims if pod.priority == highest),
        )


class PreemptionOutcome(msgspec.Struct, frozen=True, eq=False):
    """A plan, or the reason why there is none."""

    plan: PreemptionPlan | None = None
    message: str = ""
    keep_nomination: bool = False
    """Whether the pod keeps its nominated node."""


def decide(
    pod: SchedulablePod,
    nodes: Sequence[ClusterNode],
    rejections: Mapping[str, Rejection],
    budgets: Sequence[Budget],
    ignored: frozenset[str] = frozenset(),
) -> PreemptionOutcome:
    """Decide which pods to remove for a pod that fits nowhere."""
    if not pod.may_preempt:
        return PreemptionOutcome(message=messages.NEVER, keep_nomination=True)
    if _has_made_room(pod, nodes, rejections):
        return PreemptionOutcome(message=messages.ALREADY_PREEMPTING, keep_nomination=True)
    plans: list[PreemptionPlan] = []
    reasons: list[str] = []
    for one in nodes:
        rejection = rejections.get(one.node.name)
        if rejection is None or not rejection.curable:
            reasons.append(messages.NOT_HELPFUL)
        elif one.has_below(pod.priority) and (plan := on_node(pod, one, budgets, ignored)) is not None:
            plans.append(plan)
        else:
            reasons.append(messages.NO_VICTIMS)
    if not plans:
        return PreemptionOutcome(message=messages.preemption_failed(len(nodes), reasons))
    return PreemptionOutcome(min(plans, key=PreemptionPlan.cost))


def _has_made_room(
    pod: SchedulablePod, nodes: Sequence[ClusterNode], rejections: Mapping[str, Rejection]
) -> bool:
    """Whether pods are already terminating for this one: it must not preempt others meanwhile."""
    if not pod.nominated or not (rejection := rejections.get(pod.nominated)) or not rejection.curable:
        return False
    node = next((one for one in nodes if one.node.name == pod.nominated), None)
    return node is not None and any(
        one.is_terminating and one.is_preempted and one.priority < pod.priority for one in node.pods.values()
    )


def on_node(
    pod: SchedulablePod, on: ClusterNode, budgets: Sequence[Budget], ignored: frozenset[str] = frozenset()
) -> PreemptionPlan | None:
    """The fewest and least important pods to remove from one node; None where even all are not enough."""
    account = on.account_for(pod).copy()
    lower = [one for one in on.pods.values() if one.priority < pod.priority]
    for one in lower:
        account.leave(one.uid)
    if check(pod, on.node, account, ignored) is not None:
        return None
    lower.sort(key=lambda one: (-one.priority, one.started))
    kept_by_budget = _protected(lower, budgets)
    # Pods under a disruption budget are put back first, so that as many of them as possible stay.
    lower.sort(key=lambda one: one.uid not in kept_by_budget)
    victims: list[SchedulablePod] = []
    for one in lower:
        account.enter(one.uid, one.requests)
        if check(pod, on.node, account, ignored) is not None:
            account.leave(one.uid)
            victims.append(one)
    if not victims:
        return None
    violations = sum(one.uid in kept_by_budget for one in victims)
    return PreemptionPlan(on.node.name, tuple(victims), violations)


def _protected(pods: Sequence[SchedulablePod], budgets: Sequence[Budget]) -> set[str]:
    """The pods that some budget would protect, if they were removed in this order."""
    left = {id(budget): budget.allowed for budget in budgets}
    found: set[str] = set()
    for pod in pods:
        for budget in budgets:
            if budget.covers(pod):
                left[id(budget)] -= 1
                if left[id(budget)] < 0:
                    found.add(pod.uid)
    return found
