"""The table: kept up to date fact by fact, it equals one that is built from scratch; and expiry as declared."""

from functools import partial
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.load import round, snapshot, terms
from colocate.load.decision import decide
from colocate.load.settings import (
    EstimateSettings,
    LedgerSettings,
    LoadSettings,
    MissingScore,
    PolicyName,
    Staleness,
    Weighted,
    mix,
)
from colocate.load.table import LoadTable
from colocate.load.terms import Freshness
from colocate.model.load import Access, Amount, BoundPod, NodeFacts, NodeLoad, PodUsage, PriorityClass
from tests.load.facts import GIB, NOW, load, node, pod, table
from tests.support.growth import check_growth

BALANCED = mix("balanced")
NAMES = ["a", "b", "c", "d"]


def score(made: LoadTable, *names: str) -> list[int]:
    return made.scores(BALANCED, made.demand(pod("new")), names)


# --- nodes without a sample --------------------------------------------------------------------------


def test_a_node_without_a_sample_is_judged_as_the_median_node() -> None:
    made = table({"cool": load(10, 10), "middle": load(40, 40), "hot": load(90, 90), "silent": NodeLoad()})
    cool, middle, hot, silent = score(made, "cool", "middle", "hot", "silent")
    assert cool > middle == silent > hot
    assert made.terms("silent").freshness is Freshness.NEVER


def test_a_sample_expires_and_the_node_becomes_as_the_median() -> None:
    made = table({"old": load(90, 90, at=NOW - 100), "new": load(20, 20)})
    assert score(made, "old")[0] < score(made, "new")[0]
    made.advance(NOW + 80)
    assert made.terms("old").freshness is Freshness.EXPIRED
    assert score(made, "old") == score(made, "new")


def test_a_clock_that_was_ahead_for_a_moment_does_no_lasting_harm() -> None:
    made = table({"hot": load(90, 90), "cool": load(20, 20)})
    made.bind(BoundPod(pod("before"), "hot", NOW))
    made.advance(NOW + 3600)
    assert made.terms("hot").unseen_pods == 0
    assert made.terms("hot").freshness is Freshness.EXPIRED
    decide(made, pod("under-way"), ["cool"], NOW + 3600)
    made.bind(BoundPod(pod("bound"), "hot", NOW + 3600))
    made.advance(NOW + 1)
    assert made.terms("hot").freshness is Freshness.FRESH
    assert score(made, "hot")[0] < score(made, "cool")[0]
    assert (made.terms("cool").unseen_pods, made.terms("hot").unseen_pods) == (1, 2)
    made.advance(NOW + 12)
    assert made.terms("cool").unseen_pods == 0, "what was assumed lasts no longer than ever"
    made.observe({"hot": load(90, 90, at=NOW + 61)}, NOW + 61)
    assert made.terms("hot").unseen_pods == 0, "and what is shown leaves"


def test_an_unknown_node_is_worth_nothing_where_that_is_declared() -> None:
    lowest = LoadSettings(staleness=Staleness(score=MissingScore.LOWEST))
    made = table({"known": load(95, 95), "silent": NodeLoad()}, lowest)
    assert score(made, "silent") == [0]
    assert score(made, "known")[0] > 0


def test_when_nothing_is_measured_all_are_equal_until_the_ledger_knows_more() -> None:
    made = table({"a": NodeLoad(), "b": NodeLoad()})
    assert len(set(score(made, "a", "b"))) == 1
    made.bind(BoundPod(pod("p", 4000), "a", NOW))
    a, b = score(made, "a", "b")
    assert a < b


def test_a_candidate_that_is_no_node_yet_is_judged_as_the_typical_one_and_not_remembered() -> None:
    made = table({"a": load(10, 10), "b": load(10, 10)})
    assert score(made, "unheard of") == score(made, "a")
    made.add_nodes([node("unheard of", Amount(1, 1))])
    assert score(made, "unheard of") < score(made, "a")


def test_samples_of_a_node_that_is_gone_count_no_more() -> None:
    made = table({"a": load(10, 10), "hot": load(90, 90), "silent": NodeLoad()})
    made.remove_node("hot")
    assert score(made, "silent") == score(made, "a")


def test_candidates_that_are_no_nodes_are_judged_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    made = table({"a": load(10, 10), "b": load(50, 50)})
    strangers = [f"stranger-{number}" for number in range(1000)]
    build = Mock(wraps=terms.node_terms)
    monkeypatch.setattr(round, "node_terms", build)
    assert score(made, *strangers) == score(made, "") * 1000
    assert build.call_count == 1
    made.observe({"a": load(80, 80), "b": load(90, 90)}, NOW)
    assert score(made, "stranger-0") == score(made, "stranger-1001") < score(made, "a", "b")
    made.add_nodes([node("stranger-0")])
    made.observe({"stranger-0": load(20, 20)}, NOW)
    assert score(made, "stranger-0") > score(made, "stranger-1")


def test_samples_of_names_that_are_no_nodes_do_not_pile_up() -> None:
    made = table({"a": load(10, 10)})
    for number in range(5):
        made.observe({f"stranger-{number}": load(50, 50)}, NOW)
    assert set(made.loads) == {"a", "stranger-4"}
    assert score(made, "b") == score(made, "a"), "a stranger's load does not change the typical node"


def test_what_prod_pods_use_is_summed_where_it_is_measured_and_estimated_where_it_is_not() -> None:
    made = table({"a": load(10, 10)})
    prod = msgspec.structs.replace(pod("prod", 1000, GIB), priority_class=PriorityClass.PROD)
    guessed = made.demand(prod).estimate
    made.bind(BoundPod(prod, "a", NOW - 600))
    made.bind(BoundPod(pod("other", 1000, GIB), "a", NOW - 600))
    assert made.terms("a").aware.prod == made.terms("a").aware.unseen_prod == guessed
    for used in (300, 500):
        made.observe_pods({"prod": PodUsage(Amount(used, GIB), NOW, prod=True)})
        assert made.terms("a").aware.prod == Amount(used, GIB)
        assert made.terms("a").aware.unseen_prod == Amount()
    for usages in ({}, {"prod": PodUsage(Amount(1, 1), NOW, prod=False)}):
        made.observe_pods(usages)
        assert made.terms("a").aware.prod == guessed


def test_a_prod_pod_that_the_ledger_has_is_counted_once() -> None:
    made = table({"a": load(10, 10)})
    prod = msgspec.structs.replace(pod("prod", 1000, GIB), priority_class=PriorityClass.PROD)
    guessed = made.demand(prod).estimate
    decide(made, prod, ["a"], NOW)
    assert made.terms("a").aware.prod == made.terms("a").aware.unseen_prod == guessed
    made.bind(BoundPod(prod, "a", NOW))
    assert made.terms("a").aware.prod == made.terms("a").aware.unseen_prod == guessed
    made.observe_pods({"prod": PodUsage(Amount(300, 0), NOW, prod=True)})
    assert made.terms("a").aware.prod == guessed, "what is measured, and what is still to come"
    assert made.terms("a").aware.unseen_prod == guessed - Amount(300, 0)


# --- incremental equals from scratch ----------------------------------------------------------------

names = st.sampled_from(NAMES)
uids = st.sampled_from([f"p-{i}" for i in range(6)])
percents = st.none() | st.floats(0, 120)
facts = st.one_of(
    st.tuples(st.just("node"), names, st.integers(1000, 64_000)),
    st.tuples(st.just("gone"), names),
    st.tuples(st.just("load"), names, percents, percents),
    st.tuples(st.just("bind"), uids, names, st.integers(0, 300)),
    st.tuples(st.just("end"), uids),
    st.tuples(st.just("usage"), uids, st.integers(0, 4000), st.booleans()),
    st.tuples(st.just("ask"), st.sampled_from(["q-1", "q-2"])),
    st.tuples(st.just("wait"), st.integers(1, 400)),
)


def play(made: LoadTable, story: list[tuple[object, ...]]) -> None:
    now = NOW
    for event in story:
        match event:
            case ("node", str(name), int(cpu)):
                made.add_nodes(
                    [NodeFacts(name, Amount(cpu, GIB * cpu // 250), Amount(cpu, GIB * cpu // 250))]
                )
            case ("gone", str(name)):
                made.remove_node(name)
            case ("load", str(name), float() | None as cpu, float() | None as memory):
                made.observe({name: load(cpu, memory, at=now)}, now)
            case ("bind", str(uid), str(name), int(age)):
                kind = PriorityClass.PROD if uid < "p-3" else PriorityClass.NONE
                asked = msgspec.structs.replace(pod(uid, 500, GIB, owner="web"), priority_class=kind)
                made.bind(BoundPod(asked, name, now - age))
            case ("end", str(uid)):
                made.end(uid)
            case ("usage", str(uid), int(cpu), bool(prod)):
                made.observe_pods({uid: PodUsage(Amount(cpu, GIB), now, prod)})
            case ("ask", str(uid)):
                decide(made, pod(uid, 300), NAMES, now)
            case ("wait", int(seconds)):
                now += seconds
                made.advance(now)
            case _:
                raise AssertionError(f"{event} is no event of a story")
        # Look at everything in between, so that something stale would be kept.
        for policy in PolicyName:
            made.scores((Weighted(policy),), made.demand(pod("new")), NAMES)


@pytest.mark.parametrize("per_pod", [False, True])
@given(story=st.lists(facts, max_size=25))
def test_a_table_kept_up_to_date_is_the_one_made_rebuilt(
    story: list[tuple[object, ...]], per_pod: bool
) -> None:
    made = LoadTable(LoadSettings(ledger=LedgerSettings(wait_for_pod_usage=per_pod)))
    play(made, story)
    taken = snapshot.take(made)
    rebuilt = snapshot.restore(snapshot.decode(snapshot.encode(taken), "a snapshot"))
    assert [rebuilt.terms(name) for name in NAMES] == [made.terms(name) for name in NAMES]
    for policy in PolicyName:
        asked = made.demand(pod("new", owner="web"))
        assert rebuilt.demand(pod("new", owner="web")) == asked
        weighted = (Weighted(policy),)
        assert rebuilt.scores(weighted, asked, NAMES) == made.scores(weighted, asked, NAMES)
    assert snapshot.take(rebuilt) == taken


@pytest.mark.parametrize("calibrate", [False, True])
def test_what_one_replica_has_learned_is_its_own_unless_estimates_are_not_corrected(calibrate: bool) -> None:
    settings = LoadSettings(estimate=EstimateSettings(calibrate=calibrate))
    old, young = (table({"a": load(10, 10), "b": load(10, 10)}, settings) for _ in range(2))
    old.bind(BoundPod(pod("first", 4000, owner="web"), "a", NOW))
    old.observe_pods({"first": PodUsage(Amount(400, GIB), NOW + 60)})
    old.observe({"a": load(10, 10, at=NOW + 60)}, NOW + 60)
    old.end("first")
    young.observe({"a": load(10, 10, at=NOW + 60)}, NOW + 60)
    later = pod("later", 4000, owner="web")
    alike = old.scores(BALANCED, old.demand(later), NAMES) == young.scores(
        BALANCED, young.demand(later), NAMES
    )
    assert alike is not calibrate


def test_replicas_that_saw_the_same_facts_in_another_order_answer_alike() -> None:
    pods = [BoundPod(pod(f"p-{i}", 100 * i), NAMES[i % 4], NOW - i) for i in range(20)]
    one, other = (table({name: load(20, 30) for name in order}) for order in (NAMES, NAMES[::-1]))
    for bound in pods:
        one.bind(bound)
    for bound in reversed(pods):
        other.bind(bound)
    assert score(one, *NAMES) == score(other, *NAMES)


# --- cost ----------------------------------------------------------------------------------------------


def test_a_binding_works_out_one_node_rebuilt_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    made = table({f"n-{i}": load(20, 20) for i in range(50)})
    everyone = list(made.nodes)
    score(made, *everyone)
    build = Mock(wraps=terms.node_terms)
    monkeypatch.setattr(round, "node_terms", build)
    made.bind(BoundPod(pod("p"), "n-7", NOW))
    score(made, *everyone)
    assert [call.args[0].name for call in build.call_args_list] == ["n-7"]


def test_whom_a_node_lets_in_and_since_when_it_is_there_work_out_no_node_rebuilt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = table({f"n-{i}": load(20, 20) for i in range(50)})
    everyone = list(made.nodes)
    score(made, *everyone)
    build = Mock(wraps=terms.node_terms)
    monkeypatch.setattr(round, "node_terms", build)
    other = msgspec.structs.replace(node("n-7"), access=Access(cordoned=True), created=NOW)
    made.add_nodes([other])
    score(made, *everyone)
    assert made.nodes["n-7"] == other
    assert build.call_args_list == []


def test_pods_are_not_added_up_again_for_usage_that_changes_no_sum() -> None:
    made = table({"a": load(20, 20)})
    made.bind(BoundPod(pod("p"), "a", NOW - 600))
    before = made.pods.on("a")
    made.observe_pods({"p": PodUsage(Amount(1, 1), NOW)})
    assert made.pods.on("a") is before


def test_ten_times_the_candidates_take_about_ten_times_as_long() -> None:
    made = table({f"n-{i}": load(20, 20) for i in range(5000)})
    everyone = list(made.nodes)
    asked = made.demand(pod("new"))
    made.scores(BALANCED, asked, everyone)
    check_growth(lambda count: partial(made.scores, BALANCED, asked, everyone[:count]), 500, 5000, at_most=25)
