"""Scores, worked out by hand."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.lab.api.objects import Object
from colocate.lab.scheduler import scores
from colocate.lab.scheduler.requests import Account, PodRequests

from .lab import Candidate, node_facts, pod, pod_facts, taint

GI = 1024**3


def candidate(name: str = "n", cpu: int = 0, memory: int = 0, **given_: Any) -> Candidate:
    """A node of 4 CPUs and 16 Gi of which some is promised."""
    account = Account()
    if cpu or memory:
        account.enter("other", PodRequests({"cpu": cpu, "memory": memory}, cpu, memory))
    return Candidate(node_facts(name=name, **given_), account)


@pytest.mark.parametrize(
    ("cpu", "memory", "requests", "score"),
    [
        (0, 0, {"cpu": "1", "memory": "4Gi"}, 75),
        (1000, 4 * GI, {"cpu": "1", "memory": "4Gi"}, 50),
        (0, 0, {"cpu": "2", "memory": "4Gi"}, 62),
        (3000, 0, {"cpu": "1", "memory": "8Gi"}, 25),
        (0, 0, {}, 97),
    ],
)
def test_room(cpu: int, memory: int, requests: Object, score: int) -> None:
    assert scores.room_score(pod_facts(requests=requests), candidate(cpu=cpu, memory=memory)) == score


@pytest.mark.parametrize(
    ("requests", "score"),
    [
        ({"cpu": "1", "memory": "4Gi"}, 100),
        ({"cpu": "2", "memory": "4Gi"}, 87),
        ({"cpu": "4"}, 50),
        ({"cpu": "9"}, 50),
    ],
)
def test_balance(requests: Object, score: int) -> None:
    assert scores.balance_score(pod_facts(requests=requests), candidate()) == score


def _disliked(count: int) -> list[Object]:
    return [taint(f"t{number}", "PreferNoSchedule") for number in range(count)]


def test_taints_are_measured_against_the_worst_node() -> None:
    nodes = [candidate(taints=_disliked(count)) for count in range(5)]
    assert scores.taint_scores(pod_facts(), nodes) == [100, 75, 50, 25, 0]
    assert scores.taint_scores(pod_facts(), nodes[:4]) == [100, 67, 34, 0]
    assert scores.taint_scores(pod_facts(), nodes[:1] * 2) == [100, 100]
    assert scores.taint_scores(pod_facts(), nodes[3:4] * 2) == [0, 0]


def test_taints_that_are_tolerated_do_not_count() -> None:
    nodes = [candidate(taints=_disliked(1)), candidate(taints=_disliked(2))]
    tolerating = pod_facts(tolerations=[{"key": "t1", "operator": "Exists"}])
    assert scores.taint_scores(tolerating, nodes) == [0, 0]
    other_effect = pod_facts(tolerations=[{"key": "t1", "operator": "Exists", "effect": "NoSchedule"}])
    assert scores.taint_scores(other_effect, nodes) == [50, 0]


def _prefers(*wishes: tuple[int, str]) -> Object:
    terms = [
        {
            "weight": weight,
            "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]},
        }
        for weight, zone in wishes
    ]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}


def test_preferred_affinity_is_measured_against_the_best_node() -> None:
    nodes = [candidate(labels={"zone": zone}) for zone in ("z1", "z2", "z3")]
    wishes = pod_facts(affinity=_prefers((40, "z1"), (10, "z2")))
    assert scores.affinity_scores(wishes, nodes) == [100, 25, 0]
    assert scores.affinity_scores(wishes, nodes[2:]) == [0]
    assert scores.affinity_scores(pod_facts(), nodes) == [0, 0, 0]


def test_the_total_is_weighted() -> None:
    nodes = [
        candidate("a", labels={"zone": "z1"}),
        candidate("b", taints=_disliked(1)),
        candidate("c", cpu=2000, memory=4 * GI),
    ]
    wishes = pod_facts(requests={"cpu": "1", "memory": "4Gi"}, affinity=_prefers((1, "z1")))
    assert scores.totals(wishes, nodes) == {
        "a": 75 + 100 + 3 * 100 + 2 * 100,
        "b": 75 + 100 + 0 + 0,
        "c": 37 + 87 + 3 * 100 + 0,
    }
    assert scores.totals(pod_facts(pod()), nodes[:1]) == {"a": 97 + 300}, "nothing to balance"


@given(st.dictionaries(st.text(max_size=3), st.integers(-5, 5), min_size=1), st.integers())
def test_one_of_the_best_is_picked_and_the_seed_says_which(found: dict[str, int], seed: int) -> None:
    picked = scores.pick(found, Random(seed))
    assert found[picked] == max(found.values())
    assert scores.pick(found, Random(seed)) == picked


def test_ties_are_spread() -> None:
    dice = Random(1)
    tied = {"a": 1, "b": 1, "c": 0}
    assert {scores.pick(tied, dice) for _ in range(50)} == {"a", "b"}
