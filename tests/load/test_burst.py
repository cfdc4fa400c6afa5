"""Two hundred pods at once: with the ledger they spread, without it they herd."""

import random
from collections import Counter, deque

import pytest

from colocate.load.decision import decide
from colocate.load.settings import LedgerSettings, LoadSettings, mix
from colocate.load.table import LoadTable
from colocate.model.load import Amount, BoundPod, PerResource
from tests.load.facts import GIB, NO_LIMIT, NOW, SIZE, load, pod, table

PODS, NODES = 200, 20
MEAN = PODS / NODES
HUGE = Amount(128_000, 1024 * GIB)


def burst(
    *replicas: LoadTable,
    lag: int = 0,
    seed: int = 0,
    ledger: bool = True,
    cpu: int = 50,
    pods: int = PODS,
    limit: PerResource = NO_LIMIT,
) -> Counter[str]:
    """Where the pods go, if kube-scheduler takes any of the best, and bindings are seen `lag` pods late.

    Replicas are asked in turn, and all of them see every binding.
    """
    chance = random.Random(seed)
    names = list(replicas[0].nodes)
    placed: Counter[str] = Counter()
    under_way: deque[BoundPod] = deque()
    for number in range(pods):
        now = NOW + number * 0.01
        new = pod(f"nginx-{seed}-{number}", cpu, limit=limit)
        asked = replicas[number % len(replicas)]
        scores = decide(asked, new, names, now, assume=ledger).scores
        best = max(scores)
        chosen = chance.choice([name for name, score in zip(names, scores, strict=True) if score == best])
        placed[chosen] += 1
        under_way.append(BoundPod(new, chosen, now))
        if ledger and len(under_way) > lag:
            seen = under_way.popleft()
            for made in replicas:
                made.bind(seen)
    return placed


def idle(settings: LoadSettings | None = None, size: Amount = SIZE) -> LoadTable:
    return table({f"node-{i:02}": load(3, 5) for i in range(NODES)}, settings, size)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("cpu", [50, 500, 2000])
def test_a_burst_spreads_evenly_over_idle_nodes(cpu: int, seed: int) -> None:
    assert max(burst(idle(), seed=seed, cpu=cpu).values()) <= 1.3 * MEAN


@pytest.mark.parametrize("seed", range(5))
def test_small_pods_spread_over_huge_nodes_too(seed: int) -> None:
    assert max(burst(idle(size=HUGE), seed=seed).values()) <= 1.3 * MEAN


@pytest.mark.parametrize("lag", [3, 5, 10])
@pytest.mark.parametrize("seed", range(5))
def test_a_burst_spreads_while_bindings_are_seen_late(lag: int, seed: int) -> None:
    assert max(burst(idle(), lag=lag, seed=seed).values()) <= 1.3 * MEAN


@pytest.mark.parametrize("seed", range(5))
def test_a_burst_spreads_over_what_two_replicas_know_of_it(seed: int) -> None:
    assert max(burst(idle(), idle(), lag=5, seed=seed).values()) <= 1.3 * MEAN


@pytest.mark.parametrize("policy", ["balanced", "mem-real-usage", "cpu-real-usage", "load-aware"])
def test_a_burst_spreads_by_other_policies_as_well(policy: str) -> None:
    assert max(burst(idle(LoadSettings(policy=mix(policy)))).values()) <= 1.3 * MEAN


@pytest.mark.parametrize(("lag", "most"), [(0, 1.3), (5, 1.3), (20, 1.3), (50, 1.6)])
@pytest.mark.parametrize("seed", range(5))
def test_a_burst_spreads_by_requests_alone_while_bindings_are_seen_late(
    lag: int, most: float, seed: int
) -> None:
    made = idle(LoadSettings(policy=mix("oversell")))
    assert max(burst(made, lag=lag, seed=seed, cpu=200).values()) <= most * MEAN


def test_without_the_ledger_pods_herd_on_the_node_that_was_idlest_a_minute_ago() -> None:
    made = table({f"node-{i:02}": load(3 + (i != 7), 5) for i in range(NODES)})
    assert burst(made, ledger=False) == {"node-07": PODS}


def test_with_the_ledger_the_idlest_node_gets_more_and_not_all() -> None:
    made = table({f"node-{i:02}": load(3 + 2 * (i != 7), 5) for i in range(NODES)})
    placed = burst(made)
    assert max(placed, key=lambda name: placed[name]) == "node-07"
    assert placed["node-07"] <= 1.3 * MEAN


def test_a_hot_node_gets_none_of_a_burst() -> None:
    made = table({f"node-{i:02}": load(3, 5 if i else 90) for i in range(NODES)})
    assert burst(made)["node-00"] == 0


def test_counting_by_number_ends_where_it_would_hide_the_measured_load() -> None:
    settings = LoadSettings(ledger=LedgerSettings(least_percent_bound=2.0))
    made = table({"cool": load(10, 10), "hot": load(60, 60)}, settings)
    for number in range(60):
        made.bind(BoundPod(pod(f"p-{number}", 1, 1 << 20), "cool", NOW))
    cool, hot = made.scores(mix("balanced"), made.demand(pod("new")), ["cool", "hot"])
    assert cool > hot


@pytest.mark.parametrize("policy", ["balanced", "mem-real-usage"])
def test_thirty_replicas_avoid_the_one_of_three_nodes_that_is_full_of_memory(policy: str) -> None:
    loads = {"node-01": load(5, 13), "node-02": load(5, 90), "node-03": load(5, 13)}
    placed = burst(table(loads, LoadSettings(policy=mix(policy))), pods=30)
    assert placed == {"node-01": 15, "node-03": 15}


TIMES = [5, 10, 20, 40]
SMALL = Amount(4_000, 16 * GIB)


def many_times(times: int) -> PerResource:
    """A limit that is so many times what the pods of a burst request."""
    return PerResource(50 * times, (100 << 20) * times)


@pytest.mark.parametrize("size", [SMALL, SIZE], ids=["small", "large"])
@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("policy", ["balanced", "mem-real-usage"])
def test_thirty_replicas_avoid_it_too_where_limits_are_many_times_the_requests(
    policy: str, times: int, size: Amount
) -> None:
    loads = {"node-01": load(10, 20), "hot": load(10, 90), "node-03": load(10, 20)}
    for limit in (many_times(times), PerResource(None, many_times(times).memory)):
        placed = burst(table(loads, LoadSettings(policy=mix(policy)), size), pods=30, limit=limit)
        assert placed["hot"] == 0
        assert max(placed.values()) <= 1.3 * 15


@pytest.mark.parametrize("size", [SMALL, HUGE], ids=["small", "huge"])
@pytest.mark.parametrize("times", [5, 40])
@pytest.mark.parametrize("policy", ["balanced", "mem-real-usage", "cpu-real-usage"])
def test_a_burst_spreads_where_limits_are_many_times_the_requests(
    policy: str, times: int, size: Amount
) -> None:
    made = idle(LoadSettings(policy=mix(policy)), size)
    assert max(burst(made, limit=many_times(times)).values()) <= 1.3 * MEAN


def test_pods_go_on_being_scheduled_and_spread_when_samples_stop() -> None:
    made = table({f"node-{i:02}": load(3, 5, at=NOW - 3600) for i in range(NODES)})
    assert max(burst(made).values()) <= 1.3 * MEAN
