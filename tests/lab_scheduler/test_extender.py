"""Extenders over real HTTP: asked as recorded, believed as far as kube-scheduler does, and outlived."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from colocate.lab.api import pods
from colocate.lab.api.certificates import Authority
from colocate.lab.api.objects import condition, encode
from colocate.lab.api.resources import EVENTS, PODS
from colocate.lab.api.store import ObjectStore
from colocate.lab.scheduler.configuration import Configuration, ExtenderSettings, ExtenderTls, ManagedResource
from colocate.lab.scheduler.extender import arguments
from tests.support.extender_calls import RECORDED

from .conftest import scheduling
from .extending import FakeExtender, extending
from .lab import GPU, Lab


@pytest.fixture
async def extender() -> AsyncIterator[FakeExtender]:
    async with extending() as fake:
        yield fake


def using(fake: FakeExtender, **given: Any) -> Configuration:
    settings: dict[str, Any] = {"filter_verb": "filter", "prioritize_verb": "prioritize", "weight": 1}
    settings |= {"node_cache_capable": True} | given
    return Configuration(extenders=(ExtenderSettings(fake.url, **settings),))


def names(fake: FakeExtender, verb: str = "filter") -> list[list[str]]:
    return [call.json["NodeNames"] for call in fake.asked(verb)]


@pytest.mark.parametrize(
    "line", RECORDED, ids=lambda line: f"{line['verb']}-{line['headers']['Content-Length']}"
)
def test_requests_are_of_the_recorded_length(line: Any) -> None:
    request = line["request"]
    nodes = request["Nodes"] and [encode(node) for node in request["Nodes"]["items"]]
    body = arguments(encode(request["Pod"]), nodes, request["NodeNames"])
    assert json.loads(body) == request
    assert list(json.loads(body)) == list(request)
    assert len(body) == int(line["headers"]["Content-Length"])


@pytest.mark.parametrize("names_only", [True, False])
@pytest.mark.parametrize("verb", ["filter", "prioritize"])
async def test_requests_have_the_recorded_shape(
    lab: Lab, extender: FakeExtender, names_only: bool, verb: str
) -> None:
    (line,) = [
        one
        for one in RECORDED
        if one["verb"] == verb
        and (one["request"]["Nodes"] is None) == names_only
        and one["request"]["Pod"]["metadata"]["name"] != "s2"
    ]
    lab.add_node("n1")
    lab.add_node("n2")
    lab.add_pod("s1", {"cpu": "50m", "memory": "100Mi"})
    async with scheduling(lab, using(extender, node_cache_capable=names_only)):
        pass
    (call,) = extender.asked(verb)
    ours, theirs = call.json, line["request"]
    assert list(ours) == list(theirs) == ["Pod", "Nodes", "NodeNames"]
    assert list(ours["Pod"]) == list(theirs["Pod"])
    metadata = [key for key in theirs["Pod"]["metadata"] if key not in ("annotations", "managedFields")]
    assert list(ours["Pod"]["metadata"]) == metadata
    assert ours["Pod"]["spec"].keys() == theirs["Pod"]["spec"].keys() - {"automountServiceAccountToken"}
    assert ours["Pod"]["status"] == theirs["Pod"]["status"]
    if names_only:
        assert (ours["Nodes"], ours["NodeNames"]) == (None, ["n1", "n2"])
    else:
        assert ours["NodeNames"] is None
        assert list(ours["Nodes"]) == list(theirs["Nodes"]) == ["metadata", "items"]
        assert [list(node) for node in ours["Nodes"]["items"]] == [["metadata", "spec", "status"]] * 2
    headers = {key: value for key, value in call.headers if key != "Host"}
    assert headers == line["headers"] | {"Content-Length": str(len(call.body))}


async def test_only_feasible_nodes_are_shown_and_one_is_not_prioritized(
    lab: Lab, extender: FakeExtender
) -> None:
    lab.add_node("n1")
    lab.add_node("n2", labels={"zone": "z1"})
    lab.add_pod("picky", nodeSelector={"zone": "z1"})
    lab.add_pod("impossible", nodeSelector={"zone": "z2"})
    async with scheduling(lab, using(extender)):
        pass
    assert names(extender) == [["n2"]]
    assert extender.asked("prioritize") == []
    assert lab.placed() == {"picky": "n2"}


async def test_the_extender_filters_and_its_reasons_are_told(lab: Lab, extender: FakeExtender) -> None:
    for name in ("n1", "n2", "n3", "n4"):
        lab.add_node(name)
    lab.add_node("tiny", cpu="0")
    extender.answers["filter"] = lambda _: {
        "NodeNames": [],
        "FailedNodes": {"n1": "too hot", "n2": "too hot"},
        "FailedAndUnresolvableNodes": {"n3": "no sample"},
    }
    async with scheduling(lab, using(extender)) as scheduler:
        lab.add_pod("p", {"cpu": "1"})
        await scheduler.settled()
        assert lab.why("p") == (
            "0/5 nodes are available: 1 Insufficient cpu, 1 no sample, 2 too hot. "
            "no new claims to deallocate, preemption: 0/5 nodes are available: "
            "2 No preemption victims found for incoming pod, 3 Preemption is not helpful for scheduling."
        )
        extender.answers["filter"] = lambda _: {"nodenames": ["n3"], "failedNodes": None}
        lab.change_node("n1", unschedulable=True)
        lab.change_node("n1", unschedulable=False)
        await lab.clock.advance(1)
        await scheduler.settled()
        assert lab.node_of("p") == "n3", "field names may be of any case"


async def test_whole_nodes_are_answered_with_whole_nodes(lab: Lab, extender: FakeExtender) -> None:
    lab.add_node("n1")
    lab.add_node("n2")
    extender.answers["filter"] = lambda asked: {"Nodes": {"items": asked["Nodes"]["items"][1:]}}
    lab.add_pod("p")
    async with scheduling(lab, using(extender, node_cache_capable=False)):
        pass
    assert lab.placed() == {"p": "n2"}


async def test_an_answer_that_names_no_nodes_is_zero_nodes(lab: Lab, extender: FakeExtender) -> None:
    lab.add_node("n1")
    lab.add_pod("p")
    extender.answers["filter"] = lambda _: {"Nodes": None, "NodeNames": None}
    async with scheduling(lab, using(extender)):
        pass
    assert lab.why("p").startswith("0/1 nodes are available: no new claims")


async def test_scores_count_ten_times_their_weight(lab: Lab, extender: FakeExtender) -> None:
    """An empty node leads by 50 for its room: 3 × 2 × 10 overcomes that, 2 × 2 × 10 does not."""
    lab.add_node("empty")
    lab.add_node("half")
    lab.add_pod("filler", {"cpu": "2", "memory": "8Gi"}, nodeName="half")
    score = 2
    extender.answers["prioritize"] = lambda _: [{"Host": "half", "Score": score}, {"Host": "?", "Score": 99}]
    async with scheduling(lab, using(extender, weight=2)) as scheduler:
        lab.add_pod("a", {"cpu": "1m", "memory": "4Mi"})
        await scheduler.settled()
        score = 3
        lab.add_pod("b", {"cpu": "1m", "memory": "4Mi"})
        await scheduler.settled()
    assert (lab.node_of("a"), lab.node_of("b")) == ("empty", "half")


BAD = {
    "not JSON": (200, b"<html>"),
    "an error": (500, b"{}"),
    "another shape": (200, b'{"NodeNames": 3, "Host": 3}'),
    "no JSON at all": (200, b""),
}


@pytest.mark.parametrize("kind", [*BAD, "its own error", "an unknown node"])
async def test_a_filter_that_fails_fails_the_pod_until_it_answers(
    lab: Lab, extender: FakeExtender, kind: str
) -> None:
    lab.add_node("n1")
    lab.add_pod("p")
    own: dict[str, Any] = {
        "its own error": {"Error": "no metrics"},
        "an unknown node": {"NodeNames": ["n9"]},
    }
    extender.status, answer = BAD.get(kind) or (200, encode(own[kind]))
    extender.answers["filter"] = lambda _: answer
    async with scheduling(lab, using(extender)) as scheduler:
        said = condition(lab.pod("p"), "PodScheduled")
        assert said is not None
        assert said["reason"] == "SchedulerError"
        assert said["message"].startswith("the extender at http://127.0.0.1:")
        (event,) = lab.events("FailedScheduling")
        assert event["message"] == said["message"]
        extender.status, extender.answers["filter"] = 200, lambda _: {"NodeNames": ["n1"]}
        await lab.clock.advance(1)
        await scheduler.settled()
        assert lab.node_of("p") == "n1", "without any change of the cluster"


async def test_an_ignorable_extender_is_passed_over(lab: Lab, extender: FakeExtender) -> None:
    lab.add_node("n1")
    lab.add_pod("p")
    extender.status = 500
    async with scheduling(lab, using(extender, ignorable=True)):
        pass
    assert lab.placed() == {"p": "n1"}


@pytest.mark.parametrize(
    "answer",
    [b"<html>", b'[{"Host": "n1", "Score": 9.5}]', b'[{"Host": "n1", "Score": 9.0}]',
     b'[{"Host": "n1", "Score": "9"}]',
     b'[{"Host": "n1", "Score": true}]', b'{"Host": "n1"}', b"null"],
)  # fmt: skip
async def test_priorities_that_cannot_be_read_are_done_without(
    lab: Lab, extender: FakeExtender, answer: bytes
) -> None:
    lab.add_node("n1", cpu="2")
    lab.add_node("n2")
    lab.add_pod("p", {"cpu": "1"})
    extender.answers["prioritize"] = lambda _: answer
    async with scheduling(lab, using(extender)):
        pass
    assert lab.placed() == {"p": "n2"}


async def test_an_extender_that_is_not_there_is_outlived(lab: Lab) -> None:
    async with extending() as gone:
        pass
    lab.add_node("n1")
    lab.add_pod("p")
    async with scheduling(lab, using(gone)) as scheduler:
        assert "cannot be reached" in lab.why("p")
        assert scheduler.waiting == 1
    async with scheduling(lab, using(gone, ignorable=True)):
        assert lab.placed() == {"p": "n1"}


@pytest.mark.parametrize("verb", ["filter", "prioritize"])
async def test_no_pod_waits_longer_than_the_timeout(lab: Lab, extender: FakeExtender, verb: str) -> None:
    lab.add_node("n1")
    lab.add_node("n2")
    asked, never = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        if extender.calls[-1].verb == verb:
            asked.set()
            await never.wait()

    extender.before = hang
    async with scheduling(lab, using(extender)) as scheduler:
        lab.add_pod("p")
        await asked.wait()
        await lab.clock.until_someone_sleeps()
        await lab.clock.advance(4.9)
        assert not lab.events()
        await lab.clock.advance(0.2)
        await scheduler.settled()
        if verb == "filter":
            assert lab.why("p").endswith("/filter has not answered within 5 s")
        else:
            assert lab.node_of("p")


async def test_only_pods_that_ask_for_a_managed_resource_concern_it(lab: Lab, extender: FakeExtender) -> None:
    lab.add_node("n1")
    lab.add_node("n2")
    managed = (ManagedResource(GPU, ignored_by_scheduler=True),)
    extender.answers["filter"] = lambda _: {"NodeNames": ["n2"]}
    lab.add_pod("plain")
    lab.add_pod("gpu", {GPU: "1"})
    async with scheduling(lab, using(extender, managed_resources=managed)):
        pass
    assert [call.json["Pod"]["metadata"]["name"] for call in extender.calls] == ["gpu"]
    assert lab.node_of("plain")
    assert lab.node_of("gpu") == "n2", "though no node offers any: the extender counts them"


async def test_extenders_are_asked_in_turn_about_what_is_left(lab: Lab, extender: FakeExtender) -> None:
    async with extending() as second:
        for name in ("n1", "n2", "n3"):
            lab.add_node(name)
        lab.add_pod("p")
        extender.answers["filter"] = lambda _: {"NodeNames": ["n3", "n1"]}
        second.answers["filter"] = lambda _: {"NodeNames": ["n3"]}
        both = Configuration(extenders=using(extender).extenders + using(second).extenders)
        async with scheduling(lab, both):
            pass
    assert names(second) == [["n1", "n3"]]
    assert lab.placed() == {"p": "n3"}


async def test_the_extender_binds(lab: Lab, extender: FakeExtender) -> None:
    lab.add_node("n1", cpu="2")

    def bind(asked: Any) -> Any:
        body = {"metadata": {"uid": asked["PodUID"]}, "target": {"name": asked["Node"]}}
        pods.bind(lab.registry, asked["PodNamespace"], asked["PodName"], body, dry_run=False)
        return {"Error": ""}

    extender.answers["bind"] = bind
    for number in range(3):
        lab.add_pod(f"p{number}", {"cpu": "1"})
    async with scheduling(lab, using(extender, bind_verb="bind")) as scheduler:
        await scheduler.settled()
        assert Counter(lab.placed().values()) == {"n1": 2}, "binds under way are counted"
        assert scheduler.waiting == 1
    (first, _) = extender.asked("bind")
    assert list(first.json) == ["PodName", "PodNamespace", "PodUID", "Node"]
    assert len(lab.events("Scheduled")) == 2


async def test_room_is_kept_while_the_extender_binds(lab: Lab, extender: FakeExtender) -> None:
    lab.add_node("n1", cpu="1")
    asked, never = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        if extender.calls[-1].verb == "bind":
            asked.set()
            await never.wait()

    extender.before = hang
    async with scheduling(lab, using(extender, bind_verb="bind")):
        lab.add_pod("slow", {"cpu": "1"})
        await asked.wait()
        lab.registry.modify(
            PODS, "default", "slow", lambda pod: pod["metadata"].update(annotations={"a": "b"})
        )
        lab.add_pod("other", {"cpu": "1"})
        changes = lab.store.changes(EVENTS.storage)
        async with asyncio.timeout(20):
            while not lab.events("FailedScheduling"):
                await asyncio.shield(changes.turn())
        assert lab.why("other").startswith("0/1 nodes are available: 1 Insufficient cpu.")
    assert len(extender.asked("bind")) == 1
    assert lab.placed() == {}


async def test_a_bind_that_fails_gives_the_room_back(lab: Lab, extender: FakeExtender) -> None:
    lab.add_node("n1", cpu="1")
    lab.add_pod("p", {"cpu": "1"})
    extender.answers["bind"] = lambda _: {"Error": "no device left"}
    async with scheduling(lab, using(extender, bind_verb="bind")) as scheduler:
        await scheduler.settled()
        assert lab.why("p").endswith("/bind says: no device left")
        lab.add_pod("q", {"cpu": "1"})
        await scheduler.settled()
        assert len(extender.asked("bind")) == 2


async def test_what_happens_while_an_extender_thinks(lab: Lab, extender: FakeExtender) -> None:
    """The node goes, the room goes, the pod goes: nothing is bound that should not be."""
    lab.add_node("n1", cpu="1")
    lab.add_pod("orphan", {"cpu": "1"})
    extender.before = _once(lambda: lab.delete_node("n1"))
    async with scheduling(lab, using(extender)) as scheduler:
        assert lab.placed() == {}
        lab.add_node("n2", cpu="1")
        extender.before = _once(lambda: lab.add_pod("rival", {"cpu": "1"}, nodeName="n2"))
        await lab.clock.advance(2)
        await scheduler.settled()
        assert lab.placed() == {"rival": "n2"}
        lab.add_node("n3", cpu="1")
        extender.before = _once(lambda: lab.delete_pod("orphan"))
        await lab.clock.advance(10)
        await scheduler.settled()
        assert lab.placed() == {"rival": "n2"}
        assert scheduler.waiting == 0


def _once(deed: Any) -> Any:
    done = False

    async def do() -> None:
        nonlocal done
        if not done:
            done = True
            deed()

    return do


async def test_stopping_in_the_middle_of_a_call_leaves_nothing(lab: Lab, extender: FakeExtender) -> None:
    lab.add_node("n1")
    asked, never = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        asked.set()
        await never.wait()

    async with scheduling(lab, using(extender)):
        extender.before = hang
        lab.add_pod("p")
        await asked.wait()
    assert lab.placed() == {}


async def test_https_with_an_authority_of_its_own(lab: Lab, tmp_path: Path) -> None:
    authority = Authority.of(ObjectStore())
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    lab.add_node("n1")
    async with extending(authority.server_context("127.0.0.1")) as fake:
        lab.add_pod("trusting")
        tls = ExtenderTls(ca_file=str(tmp_path / "ca.crt"))
        async with scheduling(lab, using(fake, enable_https=True, tls=tls)):
            assert lab.node_of("trusting") == "n1"
        lab.add_pod("wary")
        async with scheduling(lab, using(fake, tls=ExtenderTls(server_name="127.0.0.1"))):
            assert lab.node_of("wary") is None
            assert "its certificate is not trusted, self-signed" in lab.why("wary")
        async with scheduling(lab, using(fake, enable_https=True)):
            assert lab.node_of("wary") == "n1", "no authority was named: any will do, as for kube-scheduler"
