"""A decision can be told later: who was best, why, who came next, and whether the scheduler followed."""

from itertools import combinations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.errors import UserError
from colocate.load import snapshot
from colocate.load.comparison import compare
from colocate.load.decision import PodDecision, decide
from colocate.load.explanation import explain
from colocate.load.settings import LoadSettings, PolicyName, mix
from colocate.load.table import LoadTable
from colocate.load.weights import DEFAULT_PLUGINS, PER_POINT, least_weight
from colocate.model.load import Access, Amount, BoundPod, NodeFacts, NodeLoad, Taint
from tests.load.facts import EXACT, GIB, NOW, load, node, pod, table

LOADS = {"hot": load(90, 90), "cool": load(10, 10, at=NOW - 30), "warm": load(40, 40), "silent": NodeLoad()}


def test_the_best_come_first_with_what_they_were_judged_by() -> None:
    made = table(LOADS)
    answer = decide(made, pod("new"), list(LOADS), NOW)
    told = explain(answer.decision, made.settings)
    assert [node.node for node in told.nodes] == ["cool", "warm", "silent"]
    best = told.nodes[0]
    assert best.score == max(answer.scores)
    assert best.age == 30
    parts = {part.name: part.value for part in best.policies[0].parts}
    assert parts["peak CPU"] == 10
    beyond = parts["overshoot of CPU"] + parts["overshoot of memory"]
    assert best.score == int(100 / (1 + 0.3 * (beyond + 0.05 * parts["pressure"])))
    assert told.runner_up is not None
    assert told.runner_up.node == "warm"


@pytest.mark.parametrize("policy", PolicyName)
def test_every_part_of_a_score_has_a_name_of_its_own(policy: PolicyName) -> None:
    made = table(LOADS, LoadSettings(policy=mix(policy)))
    told = explain(decide(made, pod("new"), list(LOADS), NOW).decision, made.settings)
    names = [part.name for part in told.nodes[0].policies[0].parts]
    assert len(set(names)) == len(names), names
    assert not any("," in name for name in names), "a comma ends a part"


def test_an_explanation_reads_as_sentences() -> None:
    made = table({"a": load(10, 20)}, LoadSettings(ledger=EXACT))
    made.bind(BoundPod(pod("other", 800), "a", NOW))
    told = str(explain(decide(made, pod("new"), ["a"], NOW + 5).decision, made.settings))
    assert told.startswith("default/new: 1 of 1 candidates were best by balanced\na 7")
    assert "sampled 5 s before, 1 pods that samples do not show yet" in told
    assert "CPU of unseen pods 8.50 %" in told


def test_a_decision_is_told_as_it_was_when_the_table_has_changed() -> None:
    made = table(LOADS)
    decision = decide(made, pod("new"), list(LOADS), NOW).decision
    before = explain(decision, made.settings)
    made.observe({name: load(99, 99, at=NOW + 60) for name in LOADS}, NOW + 60)
    assert explain(decision, made.settings) == before


def test_a_record_is_small_and_survives_being_written() -> None:
    made = table({f"node-{i:04}": load(i / 50, 10) for i in range(5000)})
    decision = decide(made, pod("new"), list(made.nodes), NOW).decision
    written = msgspec.json.encode(decision)
    assert len(written) < 6000
    assert msgspec.json.decode(written, type=PodDecision) == decision


def test_mixed_policies_each_tell_their_part() -> None:
    made = table(LOADS)
    chosen = mix("balanced=2,mem-real-usage=1")
    told = explain(decide(made, pod("new"), list(LOADS), NOW, mix=chosen).decision, made.settings)
    reasons = {reason.policy: reason for reason in told.nodes[0].policies}
    assert reasons[PolicyName.BALANCED].score is not None
    assert reasons[PolicyName.MEM_REAL_USAGE].score is None
    assert "balanced=2, mem-real-usage=1" in str(told)


def test_whether_the_scheduler_followed() -> None:
    made = table(LOADS)
    decision = decide(made, pod("new"), list(LOADS), NOW).decision
    assert decision.followed("cool") is True
    assert decision.followed("hot") is False
    many = table({f"n-{i}": load(1, 1) for i in range(40)})
    assert decide(many, pod("new"), list(many.nodes), NOW).decision.followed("n-3") is None


def test_no_candidates_is_an_answer_too() -> None:
    made = table(LOADS)
    answer = decide(made, pod("new"), [], NOW)
    assert answer.scores == []
    assert explain(answer.decision, made.settings).nodes == ()


def test_who_only_asks_changes_nothing() -> None:
    made = table(LOADS)
    decide(made, pod("new"), list(LOADS), NOW, assume=False)
    compare(made, pod("new"), list(LOADS), mix("balanced"), mix("target-load-packing"), NOW)
    assert len(made.ledger) == 0


# --- comparing, offline ------------------------------------------------------------------------------


def test_two_policies_are_compared_node_by_node() -> None:
    made = table({"idle": load(0, 0), "busy": load(38, 38)})
    found = compare(made, pod("new"), ["idle", "busy"], mix("balanced"), mix("target-load-packing"), NOW)
    assert not found.agree
    assert found.agreement == 0
    assert found.nodes[0].node == "idle"
    same = compare(made, pod("new"), ["idle", "busy"], mix("balanced"), mix("balanced"), NOW)
    assert same.agree
    assert same.agreement == 1


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=8))
def test_orders_agree_where_both_tell_two_nodes_apart_and_alike(scores: list[tuple[int, int]]) -> None:
    loads = {f"n{number}": load(10 * cpu, 10 * memory) for number, (cpu, memory) in enumerate(scores)}
    found = compare(table(loads), pod("new"), list(loads), mix("cpu-real-usage"), mix("mem-real-usage"), NOW)
    apart = [(one, other) for one, other in combinations(scores, 2) if one != other]
    alike = [pair for pair in apart if (pair[0][0] - pair[1][0]) * (pair[0][1] - pair[1][1]) > 0]
    assert found.agreement == (len(alike) / len(apart) if apart else None)


def test_a_snapshot_gives_the_same_answers_elsewhere() -> None:
    made = table(LOADS)
    made.bind(BoundPod(pod("p", 4000), "cool", NOW))
    decide(made, pod("under-way"), ["cool", "warm"], NOW)
    elsewhere = snapshot.restore(snapshot.decode(snapshot.encode(snapshot.take(made)), "s.json"))
    one, other = (decide(each, pod("new"), list(LOADS), NOW + 1) for each in (made, elsewhere))
    assert (one.scores, one.decision) == (other.scores, other.decision)


def test_a_snapshot_has_whom_nodes_let_in_and_one_that_has_not_is_read_too() -> None:
    made = table({"n": load(20, 20), "gpu": load(20, 20)})
    access = Access(taints=(Taint("gpu", "NoSchedule", "a100"),))
    made.add_nodes([msgspec.structs.replace(node("gpu"), access=access)])
    taken = snapshot.take(made)
    assert snapshot.decode(snapshot.encode(taken), "s.json") == taken
    old = msgspec.json.decode(snapshot.encode(taken))
    for one in old["nodes"]:
        del one["access"]
    assert {one.access for one in snapshot.decode(msgspec.json.encode(old), "old.json").nodes} == {Access()}


def test_a_snapshot_can_be_asked_what_other_settings_would_do() -> None:
    made = table(LOADS)
    other = snapshot.restore(snapshot.take(made), LoadSettings(policy=mix("target-load-packing")))
    assert decide(other, pod("new"), ["hot"], NOW).decision.mix == mix("target-load-packing")


@pytest.mark.parametrize("policy", PolicyName)
@pytest.mark.parametrize("uid", ["runs", ""])
def test_without_a_pod_that_runs_it_does_not_count_against_itself(policy: PolicyName, uid: str) -> None:
    runs = pod("runs", 6000, 4 * GIB)
    asked = msgspec.structs.replace(runs, uid=uid)
    for bound_at in (NOW, NOW - 600):
        made = table({"its": load(50, 50), "equal": load(50, 50)})
        made.bind(BoundPod(runs, "its", bound_at))
        made.bind(BoundPod(pod("other", 1000, GIB), "its", bound_at))
        made.bind(BoundPod(pod("another", 1000, GIB), "equal", bound_at))
        alone = snapshot.restore(snapshot.without(snapshot.take(made), asked))
        its, equal = decide(alone, asked, list(made.nodes), NOW, mix=mix(policy), assume=False).scores
        assert its == equal


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b'{"version":1}', b'{"version":1,"taken_at":"x"}'])
def test_what_is_no_snapshot_is_said_so(text: bytes) -> None:
    with pytest.raises(UserError, match=r"^old\.json .* take it again"):
        snapshot.decode(text, "old.json")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"policy":[{"policy":"balanced","weight":1}]', b'"policy":[]'),
        (b'"policies":{}', b'"policies":{"s":[]}'),
        (b'"cpu":8000', b'"cpu":-1'),
        (b'"taken_at":1700000000.0', b'"taken_at":1e300'),
    ],
)
def test_a_snapshot_that_nothing_follows_from_is_said_so(before: bytes, after: bytes) -> None:
    written = snapshot.encode(snapshot.take(table(LOADS)))
    assert before in written
    with pytest.raises(UserError, match=r"^old\.json .* take it again"):
        snapshot.decode(written.replace(before, after), "old.json")


def test_a_snapshot_of_another_version_is_said_so() -> None:
    with pytest.raises(UserError, match="is a snapshot of version 7"):
        snapshot.decode(b'{"version":7,"whatever":1}', "new.json")


# --- kube-scheduler's weight -------------------------------------------------------------------------


@pytest.mark.parametrize("points", [1, 10, 20, 50, 99, 100])
def test_a_hot_node_loses_whatever_the_other_plugins_say(points: int) -> None:
    found = least_weight(points)
    others = 100 * sum(plugin.weight for plugin in DEFAULT_PLUGINS)
    assert points * found.weight * PER_POINT > others
    assert points * (found.weight - 1) * PER_POINT <= others, "and no heavier than that"


def test_the_weight_comes_with_its_reasons() -> None:
    assert least_weight(50).weight == 3
    assert least_weight(50).reasons == (
        "the other score plugins can prefer a node by at most 1200",
        "a node that scores 50 points less loses 1500 by a weight of 3: 50 × 3 × 10",
        "so it loses whatever the others score; below a difference of 41 points they still count",
    )


def test_with_no_other_plugin_the_least_weight_will_do() -> None:
    assert least_weight(50, ()).weight == 1


def test_a_difference_that_cannot_be_is_said_so() -> None:
    with pytest.raises(UserError, match="from 1 to 100"):
        least_weight(0)


@pytest.mark.parametrize(("other", "all_counts"), [(100, True), (1000, False), (9000, False)])
def test_the_parts_of_a_balanced_score_add_up_where_pods_cannot_have_all_of_the_node(
    other: int, all_counts: bool
) -> None:
    made = LoadTable(LoadSettings(ledger=EXACT))
    made.add_nodes([NodeFacts("n", Amount(8000, 32 * GIB), Amount(4000, 32 * GIB))])
    made.observe({"n": load(20, None)}, NOW)
    made.bind(BoundPod(pod("other", other), "n", NOW))
    told = explain(decide(made, pod("new", 1000), ["n"], NOW).decision, made.settings)
    parts = {part.name: part.value for part in told.nodes[0].policies[0].parts}
    assert parts["peak CPU"] == pytest.approx(40), "20 % of 8 cores are 40 % of 4"
    added = parts["peak CPU"] + parts["CPU of unseen pods"] + parts["CPU of this pod"]
    assert added - parts["estimated CPU not counted"] == pytest.approx(parts["pressure"])
    assert (parts["estimated CPU not counted"] == pytest.approx(0)) == all_counts


@given(st.integers(0, 7), st.integers(0, 7), st.integers(1, 4))
def test_a_snapshot_is_the_same_in_one_piece_and_in_many(nodes: int, pods: int, most: int) -> None:
    made = table({f"n{number}": load(number, 10) for number in range(nodes)})
    for number in range(pods):
        made.bind(BoundPod(pod(f"p{number}"), f"n{number % 3}", NOW))
    taken = snapshot.take(made)
    assert b"".join(snapshot.pieces(taken, most)) == msgspec.json.encode(taken)


def test_a_pod_that_is_asked_about_again_has_the_same_answer() -> None:
    made = table({"cool": load(20, 20), "warm": load(25, 25)})
    large = pod("new", 2000, 4 * GIB)
    first = decide(made, large, list(made.nodes), NOW)
    assert first.decision.best == ("cool",)
    assert made.terms("cool").unseen_pods == 1
    assert decide(made, large, list(made.nodes), NOW + 1).scores == first.scores
    assert made.terms("cool").unseen_pods == 1
