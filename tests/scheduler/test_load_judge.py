"""The judge that knows the cluster, behind the server: whatever is asked, it is answered or refused in a sentence."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import aiohttp
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from colocate.aio import Watched
from colocate.clock import ManualClock
from colocate.cluster.client import Client
from colocate.cluster.connection import Connection
from colocate.cluster.usage import UsageSnapshot
from colocate.http.places import address_of
from colocate.http.requests import HttpRequest
from colocate.load import LoadTable, PolicyName, decide
from colocate.load.api_objects import LoadPod, pod_facts
from colocate.load.settings import AllHot, FilterSettings, MissingFilter, Staleness
from colocate.model.load import Amount, NodeFacts, NodeLoad, Usage
from colocate.scheduler.loop.decision_log import DecisionLog
from colocate.scheduler.loop.load_judge import LoadJudge
from colocate.scheduler.loop.table_feed import TableFeed
from colocate.scheduler.sections import Decisions, Load, Policies
from colocate.scheduler.server.callers import Callers
from colocate.scheduler.server.extender import serving
from colocate.scheduler.server.refusal import RequestRefused
from colocate.telemetry import Event
from colocate.wire.extender_questions import read_question
from tests.scheduler.asking import POD, Asking, question, server
from tests.support.extender_calls import RECORDED
from tests.support.logs import logged

SIZE = Amount(4000, 16 << 30)
PARSED = msgspec.convert(POD, LoadPod)


def judging(clock: ManualClock, load: Load | None = None) -> tuple[LoadJudge, TableFeed, DecisionLog]:
    """Three nodes, of which the second is full."""
    load = load or Load(filter=FilterSettings(enabled=True))
    made = load.settings(300.0)
    decisions = DecisionLog(Decisions(keep=5), made, shadow=False)
    facts = TableFeed(LoadTable(made), decisions, Client(Connection("http://127.0.0.1:9", "nobody")), clock)
    facts.table.add_nodes(NodeFacts(name, SIZE, SIZE) for name in ("n1", "n2", "n3"))
    now = clock.time()
    loads = {"n1": 20.0, "n2": 99.0, "n3": 20.0}
    facts.table.observe(
        {name: NodeLoad(Usage(10, now), Usage(used, now)) for name, used in loads.items()}, now
    )
    return LoadJudge(facts, decisions, clock), facts, decisions


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
quantities = st.sampled_from(["100m", "1", "1Gi", "-5", "", "1e400", "nonsense", 7, 0.5]) | json_values
containers = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "resources": st.fixed_dictionaries(
                {}, optional={"requests": st.dictionaries(st.sampled_from(["cpu", "memory"]), quantities)}
            )
        },
    ),
    max_size=3,
)
pods = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries(
            {}, optional={"uid": st.text(), "labels": json_values, "name": json_values}
        ),
        "spec": st.fixed_dictionaries(
            {}, optional={"containers": containers | json_values, "priority": json_values}
        ),
        "status": json_values,
    },
)
names = st.lists(st.sampled_from(["n1", "n2", "n3", "stranger"]) | st.text(max_size=5), max_size=6)


@given(st.lists(st.tuples(st.sampled_from(["filter", "prioritize"]), pods, names), min_size=1, max_size=5))
@settings(max_examples=40)
def test_whatever_pod_is_asked_about_the_answer_is_right_or_a_sentence(
    asked: list[tuple[str, dict[str, Any], list[str]]],
) -> None:
    async def ask_all() -> None:
        clock = ManualClock()
        judge, _, _ = judging(clock)
        async with serving(server(), judge, clock) as listening, aiohttp.ClientSession() as session:
            ask = Asking(session, listening)
            for verb, pod, candidates in asked:
                body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": candidates})
                answered = await ask.post(verb, body)
                if answered.status == 400:
                    assert answered.sentence
                    continue
                assert answered.status == 200, answered.body
                if verb == "prioritize":
                    assert [one["Host"] for one in answered.json] == candidates
                    assert all(
                        type(one["Score"]) is int and 0 <= one["Score"] <= 100 for one in answered.json
                    )
                else:
                    assert not answered.json["Error"]
            scores = await ask.prioritized("n1", "n2", "n3")
            assert scores["n2"] < scores["n1"]

    asyncio.run(ask_all())


@pytest.mark.parametrize("policies", [*PolicyName, "balanced=2,mem-real-usage=1,oversell=3"])
async def test_by_every_policy_what_is_answered_is_what_was_decided(policies: str) -> None:
    clock = ManualClock()
    load = Load(policy=Policies(policies))
    judge, _, _ = judging(clock, load)
    _, alike, _ = judging(clock, load)
    candidates = ["n3", "stranger", "n2", "n1", "n2", 'odd"one']
    async with serving(server(), judge, clock) as listening, aiohttp.ClientSession() as session:
        ask = Asking(session, listening)
        for names in (candidates, candidates[:-1], candidates[:1]):
            for _ in range(2):
                # The second time the pod is assumed where it was best the first time, which is no matter to itself.
                answered = await ask.post("prioritize", question(*names))
                decided = decide(alike.table, pod_facts(PARSED), names, clock.time()).scores
                assert answered.json == [
                    {"Host": name, "Score": score} for name, score in zip(names, decided, strict=True)
                ]


ALL = ("n1", "n2", "n3")
LARGE = {"cpu": "1600m", "memory": "1Gi"}
"""Two of these are too much for any node here."""


def asking_for(
    uid: str, labels: dict[str, str] | None, names: Sequence[str] = ALL, **resources: Any
) -> bytes:
    spec = {"containers": [{"name": "main", "resources": resources}]}
    pod = {"metadata": {"name": uid, "namespace": "ns", "uid": uid, "labels": labels}, "spec": spec}
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode()


async def test_pods_that_ask_for_the_impossible_do_not_spoil_the_answers_for_others() -> None:
    clock = ManualClock()
    judge, _, _ = judging(clock)
    async with serving(server(), judge, clock) as listening, aiohttp.ClientSession() as session:
        ask = Asking(session, listening)
        for number, huge in enumerate(["1e305"] * 4 + ["1e400", 1e308] * 4):
            body = asking_for(f"p{number}", {}, requests={"cpu": huge, "memory": huge})
            assert (await ask.post("prioritize", body)).status == 200
        assert (await ask.post("prioritize", asking_for("good", {}, requests={"cpu": "1"}))).status == 200


async def test_null_is_as_good_as_not_there() -> None:
    judge, _, _ = judging(ManualClock())
    said = judge.prioritize(read_question(asking_for("a", None, limits=None, requests={"cpu": "1"})), "here")
    other, _, _ = judging(ManualClock())
    assert said == other.prioritize(read_question(asking_for("a", {}, requests={"cpu": "1"})), "here")


async def test_what_a_real_kube_scheduler_asked_is_judged() -> None:
    clock = ManualClock()
    judge, _, decisions = judging(clock)
    async with serving(server(), judge, clock) as listening, aiohttp.ClientSession() as session:
        ask = Asking(session, listening)
        for line in RECORDED:
            answered = await ask.post(line["verb"], json.dumps(line["request"]))
            assert answered.status == 200
            if line["verb"] == "prioritize":
                assert all(type(one["Score"]) is int for one in answered.json)
            else:
                assert answered.json["Error"] == ""
    asked = [line["request"]["Pod"]["metadata"] for line in RECORDED]
    assert decisions.latest(1)[0].explanation.pod in {f"{one['namespace']}/{one['name']}" for one in asked}


async def test_who_asks_for_a_pod_without_a_uid_leaves_no_trace() -> None:
    judge, facts, decisions = judging(ManualClock())
    nameless = {**POD, "metadata": {"name": "doctor"}}
    asked = read_question(json.dumps({"Pod": nameless, "NodeNames": ["n1", "n2"]}).encode())
    judge.filter(asked, "here")
    judge.prioritize(asked, "here")
    assert len(decisions) == 0
    assert facts.table.ledger.assumptions == ()


@pytest.mark.parametrize("candidates", [ALL, ALL[:2]], ids=["two cool nodes", "one"])
async def test_a_pod_that_is_asked_about_again_gets_the_same_answer(candidates: tuple[str, ...]) -> None:
    clock = ManualClock()
    judge, facts, _ = judging(clock)
    asked = read_question(asking_for("a", {}, candidates, requests=LARGE))
    answers = []
    for _ in range(4):
        answers.append((judge.filter(asked, "here"), judge.prioritize(asked, "here")))
        await clock.advance(1)
    assert [answer == answers[0] for answer in answers] == [True] * 4
    assert list(answers[0][0].failed) == ["n2"]
    [assumption] = facts.table.ledger.assumptions
    assert assumption.nodes == tuple(name for name in candidates if name != "n2")


async def test_for_others_a_pod_counts_where_it_was_best() -> None:
    judge, _, _ = judging(ManualClock())
    first, second = (
        judge.prioritize(read_question(asking_for(uid, {}, requests=LARGE)), "here") for uid in "ab"
    )
    assert second[0] < first[0]


REFUSING = Load(filter=FilterSettings(enabled=True, all_hot=AllHot.REFUSE))


async def test_a_pod_that_is_refused_everywhere_is_kept_with_the_reasons() -> None:
    clock = ManualClock()
    judge, facts, decisions = judging(clock, REFUSING)
    judge.filter(read_question(asking_for("a", {}, requests={"cpu": "4"})), "here")
    told = decisions.find("ns/a")
    assert told is not None
    assert told.explanation.refused
    assert (told.explanation.candidates, told.explanation.at) == (3, clock.time())
    assert [one.node for one in told.refused] == list(ALL)
    assert "its cpu would be at 95 %" in told.refused[0].reason
    assert (told.node, told.followed) == (None, None)
    assert [one.explanation.pod for one in decisions.latest(5)] == ["ns/a"]
    whole = await decisions.find_all("ns/a")
    assert whole is not None
    assert len(whole.refused) == 3
    single = decisions.find_node("ns/a", "n2")
    assert single is not None
    assert [one.node for one in single.refused] == ["n2"]
    assert decisions.all_known("ns/a")
    assert facts.table.ledger.assumptions == ()


async def test_pods_that_are_refused_everywhere_are_kept_in_bounds() -> None:
    judge, _, decisions = judging(ManualClock(), REFUSING)
    for number in range(8):
        for _ in range(2):
            judge.filter(read_question(asking_for(f"p{number}", {}, requests={"cpu": "4"})), "here")
    kept = [one.explanation.pod for one in decisions.latest(20)]
    assert kept == [f"ns/p{number}" for number in (7, 6, 5, 4, 3)]


async def test_a_pod_that_finds_a_candidate_is_no_more_told_as_refused_everywhere() -> None:
    judge, _, decisions = judging(ManualClock(), REFUSING)
    judge.filter(read_question(asking_for("a", {}, ["n2"], requests=LARGE)), "here")
    assert decisions.find("ns/a") is not None
    judge.filter(read_question(asking_for("a", {}, requests=LARGE)), "here")
    assert decisions.find("ns/a") is None, "scores come next"


async def test_the_one_candidate_that_is_left_is_judged_for_nobody_asks_for_its_score() -> None:
    judge, facts, decisions = judging(ManualClock())
    judge.filter(read_question(asking_for("a", {}, ["n1", "n2"], requests=LARGE)), "here")
    told = decisions.find("ns/a")
    assert told is not None
    assert [node.node for node in told.explanation.nodes] == ["n1"]
    assert [one.node for one in told.refused] == ["n2"]
    assert [assumption.nodes for assumption in facts.table.ledger.assumptions] == [("n1",)]


def all_hot(outcome: str) -> float:
    return (
        REGISTRY.get_sample_value("colocate_scheduler_all_hot_total", {"outcome": outcome, "shadow": "false"})
        or 0.0
    )


async def test_that_every_candidate_was_too_hot_is_in_the_decision() -> None:
    judge, _, decisions = judging(ManualClock())
    before = all_hot("let through")
    asked = read_question(asking_for("a", {}, requests={"cpu": "4"}))
    assert judge.filter(asked, "here").failed == {}
    judge.prioritize(asked, "here")
    told = decisions.find("ns/a")
    assert told is not None
    assert (told.hot_count, told.refused_count) == (3, 0)
    assert "its cpu would be at 95 %" in told.hot[0].reason
    single = decisions.find_node("ns/a", "n2")
    assert single is not None
    assert [one.node for one in single.hot] == ["n2"]
    whole = await decisions.find_all("ns/a")
    assert whole is not None
    assert len(whole.hot) == 3
    assert all_hot("let through") == before + 1
    judge.filter(read_question(asking_for("a", {})), "here")
    assert decisions.latest(1)[0].hot_count == 0, "it asks for less now"


@pytest.mark.parametrize(("load", "outcome"), [(None, "let through"), (REFUSING, "refused")])
async def test_that_every_candidate_is_too_hot_is_logged_when_it_begins_and_ends(
    load: Load | None, outcome: str
) -> None:
    clock = ManualClock()
    judge, _, _ = judging(clock, load)
    before = all_hot(outcome)
    large = read_question(asking_for("large", {}, requests={"cpu": "4"}))
    small = read_question(asking_for("small", {}))
    with logged() as logs:
        for _ in range(3):
            for asked in (large, small):
                judge.filter(asked, "here")
            await clock.advance(50)
        await clock.advance(15)
        for _ in range(2):
            judge.filter(small, "here")
        judge.filter(large, "here")
    begun, over, again = logs
    assert [one["event"] for one in logs] == [Event.FILTER_ALL_HOT, Event.FILTER_COOLER, Event.FILTER_ALL_HOT]
    assert (begun["pod"], begun["candidates"], begun["outcome"]) == ("ns/large", 3, outcome)
    assert (over["answers"], over["seconds"]) == (3, 100)
    assert again == begun
    assert all_hot(outcome) == before + 4


async def test_it_is_ready_when_all_is_known_and_not_before() -> None:
    closed = Load(filter=FilterSettings(enabled=True), staleness=Staleness(filter=MissingFilter.CLOSED))
    for load in (Load(), closed):
        judge, _, _ = judging(ManualClock(), load)
        assert [reason.partition(" yet")[0] for reason in judge.unready()] == [
            "the scheduler has not read all nodes of the cluster",
            "the scheduler has not read all pods of the cluster",
        ]


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        (("127.0.0.1", 5), True),
        (("::1", 5, 0, 0), True),
        (("::ffff:127.0.0.1", 5, 0, 0), True),
        (("10.1.2.3", 5), False),
        (("fe80::1%eth0", 5, 0, 2), False),
        ("", True),
    ],
)
def test_what_is_known_is_told_on_this_machine_alone_while_anyone_is_let_in(
    peer: object, local: bool
) -> None:
    request = HttpRequest(b"GET /snapshot HTTP/1.1\r\nHost: here\r\n\r\n")
    connection = Mock(address=address_of(peer))
    callers = Callers(server())
    if local:
        callers.check_curious(request, connection)
    else:
        with pytest.raises(RequestRefused, match="only callers on this machine get this answer"):
            callers.check_curious(request, connection)


async def test_far_more_candidates_than_nodes_are_refused_and_all_nodes_never_are() -> None:
    judge, facts, _ = judging(ManualClock())
    assert judge.most_candidates() == 10_000
    facts.table.add_nodes(NodeFacts(f"m{number}", SIZE, SIZE) for number in range(6000))
    assert judge.most_candidates() == 12_006


async def test_requests_go_before_new_samples_are_worked_in() -> None:
    clock = ManualClock()
    judge, facts, _ = judging(clock)
    facts.table.add_nodes(NodeFacts(f"m{number}", SIZE, SIZE) for number in range(500))
    asked = read_question(question("n1", "n2", "n3"))
    before = list(judge.prioritize(asked, "here"))
    calm = NodeLoad(Usage(10, clock.time()), Usage(20, clock.time()))
    poller = Mock(changed=Watched(), latest=UsageSnapshot(nodes=dict.fromkeys(facts.table.nodes, calm)))
    following = asyncio.create_task(facts.follow(poller))
    poller.changed.changed()
    given_way = 0
    while not facts.sampled.count:
        assert list(judge.prioritize(asked, "here")) == before
        given_way += 1
        await asyncio.sleep(0)
    following.cancel()
    assert given_way > 10
    assert judge.prioritize(asked, "here")[1] > before[1], "n2 is full no more"
