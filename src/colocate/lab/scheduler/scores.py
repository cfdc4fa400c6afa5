"""Scores nodes as kube-scheduler does by default. Pure, except for random tie-breaks.

Every score is 0 to 100 and weighted: free room 1, balance of CPU and memory 1, preferred affinity 2,
PreferNoSchedule taints 3. The last two are relative to the best or worst of the compared nodes.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Protocol

from colocate.lab.scheduler.facts import PodToleration, SchedulableNode, SchedulablePod
from colocate.lab.scheduler.filters import matches
from colocate.lab.scheduler.requests import CPU, MEMORY, Account

BEST = 100
ROOM, BALANCE, AFFINITY, TAINTS = 1, 1, 2, 3


class Candidate(Protocol):
    """A node that a pod may go to, and its account."""

    @property
    def node(self) -> SchedulableNode: ...

    @property
    def account(self) -> Account: ...


def totals(pod: SchedulablePod, candidates: Sequence[Candidate]) -> dict[str, int]:
    """The sum of the weighted scores of every candidate, by name."""
    taints = taint_scores(pod, candidates)
    affinity = affinity_scores(pod, candidates)
    balanced = not pod.requests.is_best_effort
    found: dict[str, int] = {}
    for index, one in enumerate(candidates):
        score = ROOM * room_score(pod, one) + TAINTS * taints[index] + AFFINITY * affinity[index]
        found[one.node.name] = score + BALANCE * balance_score(pod, one) if balanced else score
    return found


def pick(scores: Mapping[str, int], random: Random) -> str:
    """One of the nodes with the highest score, at random."""
    best = max(scores.values())
    tied = [name for name, score in scores.items() if score == best]
    return tied[0] if len(tied) == 1 else random.choice(tied)


def room_score(pod: SchedulablePod, candidate: Candidate) -> int:
    """The free share of CPU and memory with the pod; containers without requests count with a small assumed use."""
    offered, account = candidate.node.allocatable, candidate.account
    sum_, count = 0, 0
    for whole, used in (
        (offered.get(CPU, 0), account.scored_cpu + pod.requests.scored_cpu),
        (offered.get(MEMORY, 0), account.scored_memory + pod.requests.scored_memory),
    ):
        if whole:
            sum_ += (whole - used) * BEST // whole if used < whole else 0
            count += 1
    return sum_ // count if count else 0


def balance_score(pod: SchedulablePod, candidate: Candidate) -> int:
    """How similar the used shares of CPU and memory are with the pod."""
    offered, requested = candidate.node.allocatable, candidate.account.requested
    cpu, memory = offered.get(CPU, 0), offered.get(MEMORY, 0)
    if not cpu or not memory:
        return BEST
    wanted = pod.requests.amounts
    share_of_cpu = min(1.0, (requested.get(CPU, 0) + wanted.get(CPU, 0)) / cpu)
    share_of_memory = min(1.0, (requested.get(MEMORY, 0) + wanted.get(MEMORY, 0)) / memory)
    return int((1 - abs(share_of_cpu - share_of_memory) / 2) * BEST)


def taint_scores(pod: SchedulablePod, candidates: Sequence[Candidate]) -> list[int]:
    """Scores that are highest for the nodes with the fewest untolerated PreferNoSchedule taints."""
    tolerations = [one for one in pod.tolerations if one.effect in ("", "PreferNoSchedule")]
    counts = [_disliked(one.node, tolerations) if one.node.taints else 0 for one in candidates]
    worst = max(counts, default=0)
    return [BEST - BEST * count // worst if worst else BEST for count in counts]


def _disliked(node: SchedulableNode, tolerations: Sequence[PodToleration]) -> int:
    return sum(
        1
        for taint in node.taints
        if taint.effect == "PreferNoSchedule" and not any(one.tolerates(taint) for one in tolerations)
    )


def affinity_scores(pod: SchedulablePod, candidates: Sequence[Candidate]) -> list[int]:
    """Scores that are highest for the nodes that meet the preferences of the largest weight."""
    if not pod.preferred_terms:
        return [0] * len(candidates)
    weights = [
        sum(term.weight for term in pod.preferred_terms if matches(term.preference, one.node))
        for one in candidates
    ]
    most = max(weights, default=0)
    return [BEST * weight // most if most else 0 for weight in weights]
