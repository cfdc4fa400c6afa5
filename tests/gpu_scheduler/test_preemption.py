"""The preempt verb names only victims who free a GPU that fits; bind bodies are checked before they are believed."""

import copy
from typing import Any

import msgspec
import pytest

from colocate.clock import ManualClock
from colocate.gpus import DOSLAB
from colocate.gpus.packing import PackingPolicy
from colocate.gpus.packing.cluster_book import ClusterBook
from colocate.scheduler.gpus.judge import GpuJudge, as_points
from colocate.wire.extender_questions import (
    TooMany,
    Unreadable,
    read_binding,
    read_preemption,
    read_question,
)
from tests.gpu_scheduler.clusters import gpus, uuid
from tests.gpu_scheduler.fake_api import FakeApi
from tests.gpu_scheduler.test_stateful import Follower

SIZE = 1000


@pytest.fixture
def api() -> FakeApi:
    """Two GPUs; two halves on the first, one of 700 on the second."""
    api = FakeApi()
    api.put_node("a", gpus("a", 2, size=SIZE))
    for name, memory, index in (("half-1", 500, 0), ("half-2", 500, 0), ("large", 700, 1)):
        api.create(name, memory, 0, 1)
        uid = str(api.pods[name]["metadata"]["uid"])  # type: ignore[index]
        api.bind(name, "a", uid, {"doslab.io/gpu-uuid": uuid("a", index), "doslab.io/gpu-assume-time": "1"})
    api.create("new", SIZE, 0, 1)
    return api


def judge(api: FakeApi) -> GpuJudge:
    feed = Follower(api, ClusterBook(PackingPolicy.OURS, (DOSLAB,)))
    feed.follow(len(api.log))
    return GpuJudge(feed, ManualClock(), hold=10)


@pytest.mark.parametrize(
    ("victims", "helps"),
    [
        (("half-1", "half-2"), True),
        (("large",), True),
        (("half-1",), False),
        ((), False),
    ],
)
def test_victims_are_named_only_where_they_free_a_gpu_that_fits(
    api: FakeApi, victims: tuple[str, ...], helps: bool
) -> None:
    uids = [{"UID": api.pods[name]["metadata"]["uid"]} for name in victims]  # type: ignore[index]
    body = {
        "Pod": api.pods["new"],
        "NodeNameToVictims": None,
        "NodeNameToMetaVictims": {"a": {"Pods": uids, "NumPDBViolations": 1}},
    }
    named = judge(api).preempt(read_preemption(msgspec.json.encode(body)))
    assert list(named) == (["a"] if helps else [])
    if helps:
        assert named["a"].violations == 1


def test_the_best_node_is_far_enough_ahead_and_the_others_keep_their_order() -> None:
    import numpy as np

    assert as_points(np.array([3.0, 1.0, np.inf, 2.0])) == [0, 100, 0, 47]
    assert as_points(np.array([1.0, 1.0])) == [100, 94]
    assert as_points(np.array([np.inf])) == [0]


GOOD = {"PodName": "p", "PodNamespace": "default", "PodUID": "u-1", "Node": "n"}


def test_a_bind_is_read_in_any_spelling() -> None:
    asked = read_binding(msgspec.json.encode({name.lower(): value for name, value in GOOD.items()}))
    assert (asked.name, asked.namespace, asked.uid, asked.node) == ("p", "default", "u-1", "n")


@pytest.mark.parametrize(
    "changed",
    [
        {"PodName": "../x"},
        {"PodNamespace": ""},
        {"Node": "a/b"},
        {"PodUID": ""},
        {"PodUID": "x" * 200},
        {"Node": 5},
    ],
)
def test_words_that_could_lead_elsewhere_are_refused(changed: dict[str, object]) -> None:
    with pytest.raises(Unreadable):
        read_binding(msgspec.json.encode({**GOOD, **changed}))


def test_a_bind_of_megabytes_is_not_read() -> None:
    with pytest.raises(TooMany):
        read_binding(b'{"PodName":"' + b"a" * 20_000 + b'"}')


@pytest.mark.parametrize(
    "victims",
    [{"n" * 254: {"Pods": []}}, {"a": {"Pods": [{"UID": "u" * 129}]}}],
)
def test_names_in_a_preemption_are_no_longer_than_the_api_allows(victims: dict[str, object]) -> None:
    body = {"Pod": {}, "NodeNameToVictims": None, "NodeNameToMetaVictims": victims}
    with pytest.raises(Unreadable):
        read_preemption(msgspec.json.encode(body))


def test_what_is_kept_for_a_pod_is_what_the_api_server_says_that_it_asks_for(api: FakeApi) -> None:
    api.put_node("b", gpus("b", 1, size=SIZE))
    made_up: dict[str, Any] = copy.deepcopy(api.pods["new"])
    made_up["spec"]["containers"][0]["resources"]["limits"][DOSLAB.memory] = "1"
    feed = Follower(api, ClusterBook(PackingPolicy.OURS, (DOSLAB,)))
    feed.follow(len(api.log))
    GpuJudge(feed, ManualClock(), hold=10).filter(
        read_question(msgspec.json.encode({"Pod": made_up, "Nodes": None, "NodeNames": ["b"]})), ""
    )
    book = feed.book.books["b"]
    assert book.free(uuid("b", 0)).memory == 0
