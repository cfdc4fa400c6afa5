"""The controllers: replicas are kept, rollouts stay within their bounds, budgets are counted."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.clock import ManualClock
from colocate.lab.api import replica_sets, rollout
from colocate.lab.api.objects import Object, at, labels_of, name_of, rfc3339
from colocate.lab.api.resources import DEPLOYMENTS, DISRUPTION_BUDGETS, EVENTS, PODS, REPLICA_SETS
from colocate.lab.api.rollout import Bounds, Sizes
from colocate.lab.api.server import ApiServer

from .controlled import Cluster
from .samples import bare, budget, deployment

# Deployments


async def test_a_deployment_makes_its_pods(cluster: Cluster) -> None:
    cluster.create(DEPLOYMENTS, deployment("web"))
    await cluster.settle()
    (replica_set,) = (stored.body for stored in cluster.store.items(REPLICA_SETS.storage))
    hash = labels_of(replica_set)[rollout.HASH]
    assert name_of(replica_set) == f"web-{hash}"
    assert len(cluster.pods()) == 3
    for made in cluster.pods():
        assert labels_of(made) == {"app": "web", rollout.HASH: hash}
        assert made["metadata"]["ownerReferences"][0]["uid"] == replica_set["metadata"]["uid"]
    shown = cluster.get(DEPLOYMENTS, "web")
    assert shown["metadata"]["annotations"][rollout.REVISION] == "1"
    status = shown["status"]
    assert {key: value for key, value in status.items() if key != "conditions"} == {
        "observedGeneration": 1,
        "replicas": 3,
        "updatedReplicas": 3,
        "readyReplicas": 3,
        "availableReplicas": 3,
    }
    assert [(one["type"], one["reason"]) for one in status["conditions"]] == [
        ("Available", "MinimumReplicasAvailable"),
        ("Progressing", "NewReplicaSetAvailable"),
    ]


async def test_a_rollout_replaces_every_pod_and_can_be_undone(cluster: Cluster) -> None:
    cluster.create(DEPLOYMENTS, deployment("web", replicas=10))
    await cluster.settle()
    first = cluster.get(DEPLOYMENTS, "web")["spec"]["template"]
    cluster.change("web", template=deployment("web", image="nginx:2")["spec"]["template"])
    await cluster.settle()
    assert {made["spec"]["containers"][0]["image"] for made in cluster.pods()} == {"nginx:2"}
    cluster.change("web", template=first)
    await cluster.settle()
    assert {made["spec"]["containers"][0]["image"] for made in cluster.pods()} == {"nginx:1"}
    shown = cluster.get(DEPLOYMENTS, "web")
    assert shown["metadata"]["annotations"][rollout.REVISION] == "3"
    assert len(cluster.store.items(REPLICA_SETS.storage)) == 2, "the old template has its old set"


async def test_a_rollout_keeps_to_its_bounds(cluster: Cluster) -> None:
    cluster.create(DEPLOYMENTS, deployment("web", replicas=8))
    await cluster.settle()
    changes = cluster.store.changes(PODS.storage)
    position = changes.end
    cluster.change("web", template=deployment("web", image="nginx:2")["spec"]["template"])
    counts: set[int] = set()
    ready: set[int] = set()
    for _ in range(200):
        await cluster.controllers.settle()
        alive = [made for made in cluster.pods() if replica_sets.is_active(made)]
        counts.add(len(alive))
        ready.add(sum(at(made, "status", "phase") == "Running" for made in alive))
        pending = [stored for stored in cluster.store.items(PODS.storage) if _wants_a_step(stored.body)]
        if not pending:
            break
        cluster.runner.step(pending[0])
    assert max(counts) <= 10
    assert min(ready) >= 6
    assert changes.end > position


def _wants_a_step(made: Object) -> bool:
    return at(made, "status", "phase") == "Pending" or not replica_sets.is_active(made)


async def test_recreate_empties_before_it_fills(cluster: Cluster) -> None:
    cluster.create(DEPLOYMENTS, deployment("web", strategy={"type": "Recreate"}))
    await cluster.settle()
    cluster.change("web", template=deployment("web", image="nginx:2")["spec"]["template"])
    await cluster.settle(run=False)
    assert {made["spec"]["containers"][0]["image"] for made in cluster.pods()} == {"nginx:1"}
    assert all(made["metadata"].get("deletionTimestamp") for made in cluster.pods())
    await cluster.settle()
    assert {made["spec"]["containers"][0]["image"] for made in cluster.pods()} == {"nginx:2"}


async def test_scaling_and_pausing(cluster: Cluster) -> None:
    cluster.create(DEPLOYMENTS, deployment("web"))
    await cluster.settle()
    for size in (7, 0, 2):
        cluster.change("web", replicas=size)
        await cluster.settle()
        assert len(cluster.pods()) == size
    cluster.change("web", paused=True, template=deployment("web", image="nginx:2")["spec"]["template"])
    await cluster.settle()
    cluster.change("web", replicas=4)
    await cluster.settle()
    assert [made["spec"]["containers"][0]["image"] for made in cluster.pods()] == ["nginx:1"] * 4
    cluster.change("web", paused=False)
    await cluster.settle()
    assert [made["spec"]["containers"][0]["image"] for made in cluster.pods()] == ["nginx:2"] * 4


async def test_old_sets_are_kept_up_to_the_limit(cluster: Cluster) -> None:
    cluster.create(DEPLOYMENTS, deployment("web", replicas=1, revisionHistoryLimit=2))
    for number in range(5):
        image = f"nginx:{number}"
        cluster.change("web", template=deployment("web", image=image)["spec"]["template"])
        await cluster.settle()
    assert len(cluster.store.items(REPLICA_SETS.storage)) == 3


async def test_missing_and_failed_pods_are_replaced(cluster: Cluster) -> None:
    cluster.create(DEPLOYMENTS, deployment("web"))
    await cluster.settle()
    lost, failed, kept = (name_of(made) for made in cluster.pods())
    cluster.delete(PODS, lost, gracePeriodSeconds=0)
    cluster.registry.modify(
        PODS, "default", failed, lambda body: body["status"].update(phase="Failed"), "status"
    )
    await cluster.settle()
    names = {name_of(made) for made in cluster.pods()}
    assert lost not in names
    assert {failed, kept} <= names
    assert cluster.get(DEPLOYMENTS, "web")["status"]["readyReplicas"] == 3


async def test_pods_that_fail_again_and_again_are_not_made_without_end(cluster: Cluster) -> None:
    cluster.create(DEPLOYMENTS, deployment("web", replicas=1))

    def fail_all() -> None:
        for made in cluster.pods():
            if at(made, "status", "phase") != "Failed":
                cluster.registry.modify(
                    PODS,
                    "default",
                    name_of(made),
                    lambda body: body["status"].update(phase="Failed"),
                    "status",
                )

    for _ in range(20):
        await cluster.settle(run=False)
        fail_all()
    assert len(cluster.pods()) == 4
    await cluster.clock.advance(2)
    await cluster.settle(run=False)
    assert len(cluster.pods()) == 5


async def test_a_pod_counts_as_available_after_a_while(cluster: Cluster) -> None:
    cluster.create(DEPLOYMENTS, deployment("web", replicas=1, minReadySeconds=10))
    await cluster.settle()
    assert "availableReplicas" not in cluster.get(DEPLOYMENTS, "web")["status"]
    await cluster.clock.advance(10)
    await cluster.settle()
    assert cluster.get(DEPLOYMENTS, "web")["status"]["availableReplicas"] == 1


async def test_controllers_tell_what_they_do(cluster: Cluster) -> None:
    cluster.create(DEPLOYMENTS, deployment("web", replicas=1))
    await cluster.settle()
    said = {
        (stored.body["reason"], stored.body["message"].partition(" ")[0])
        for stored in cluster.store.items("events")
    }
    assert {("ScalingReplicaSet", "Scaled"), ("SuccessfulCreate", "Created")} <= said
    assert cluster.store.count(EVENTS.storage) == 2


async def test_controllers_begin_with_what_is_there(server: ApiServer, clock: ManualClock) -> None:
    server.registry.create(DEPLOYMENTS, "default", bare(deployment("web", replicas=2)))
    cluster = Cluster(server, clock)
    working = asyncio.create_task(cluster.controllers.run())
    await asyncio.sleep(0)
    await cluster.settle()
    assert len(cluster.pods()) == 2
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


# Rollouts, as arithmetic


sizes = st.builds(
    lambda wanted, available: (wanted, min(wanted, available)), st.integers(0, 12), st.integers(0, 12)
)


@given(
    st.integers(0, 12),
    st.integers(0, 4),
    st.integers(0, 4),
    sizes,
    st.lists(sizes, max_size=3),
)
def test_no_step_of_a_rollout_breaks_its_bounds(
    replicas: int, surge: int, unavailable: int, new: tuple[int, int], old: list[tuple[int, int]]
) -> None:
    limits = Bounds(replicas, surge, unavailable or (0 if surge else 1))
    newest = Sizes("new", new[0], new[0], new[1])
    others = [Sizes(f"old{number}", one[0], one[0], one[1]) for number, one in enumerate(old)]
    changed = rollout.resize(limits, newest, others)
    after = {one.name: changed.get(one.name, one.wanted) for one in [newest, *others]}
    assert all(size >= 0 for size in after.values())
    assert after["new"] <= replicas
    assert all(after[one.name] <= one.wanted for one in others)
    before, total = new[0] + sum(one.wanted for one in others), sum(after.values())
    assert total <= max(before, replicas + surge)
    # Whatever is taken away, what is left that serves is enough, or as much as there was.
    serving = min(newest.available, after["new"]) + sum(min(one.available, after[one.name]) for one in others)
    had = min(newest.available, replicas) + sum(one.available for one in others)
    assert serving >= min(had, replicas - limits.unavailable)


@given(st.integers(0, 12), st.integers(0, 4), st.integers(0, 4), st.integers(0, 12))
def test_every_rollout_ends(replicas: int, surge: int, unavailable: int, old: int) -> None:
    limits = Bounds(replicas, surge, unavailable or (0 if surge else 1))
    wanted = {"new": 0, "old": old}
    for _ in range(60):
        newest, before = (Sizes(name, wanted[name], wanted[name], wanted[name]) for name in ("new", "old"))
        changed = rollout.resize(limits, newest, [before])
        if not changed:
            break
        wanted |= changed
    assert wanted == {"new": replicas, "old": 0}


def _made(name: str, **marks: Any) -> Object:
    ready = {"type": "Ready", "status": "True" if marks.get("ready") else "False"}
    return {
        "metadata": {"name": name, "creationTimestamp": rfc3339(marks.get("born", 0))},
        "spec": {"nodeName": marks.get("node", "vm")},
        "status": {"phase": marks.get("phase", "Running"), "conditions": [ready]},
    }


def test_those_go_first_that_are_least_use() -> None:
    pods = [
        _made("ready-old", ready=True, born=1),
        _made("ready-new", ready=True, born=9),
        _made("starting", born=1),
        _made("pending", phase="Pending", born=1),
        _made("nowhere", phase="Pending", node="", born=1),
    ]
    order = ["nowhere", "pending", "starting", "ready-new"]
    for keep in (1, 2, 3, 4):
        wanted = {"metadata": {}, "spec": {"replicas": keep}}
        assert replica_sets.plan(wanted, pods, 100.0).delete == order[: 5 - keep]


@pytest.mark.parametrize(
    ("spec", "allowed"),
    [
        ({"minAvailable": 3}, 1),
        ({"minAvailable": "50%"}, 2),
        ({"maxUnavailable": 1}, 1),
        ({"maxUnavailable": "30%"}, 2),
        ({"minAvailable": 5}, 0),
        ({}, 3),
    ],
)
async def test_the_status_of_a_budget(cluster: Cluster, spec: Any, allowed: int) -> None:
    cluster.create(DEPLOYMENTS, deployment("web", replicas=4))
    cluster.create(DISRUPTION_BUDGETS, budget("web", "web", **spec))
    await cluster.settle()
    status = cluster.get(DISRUPTION_BUDGETS, "web")["status"]
    assert (status["disruptionsAllowed"], status["currentHealthy"]) == (allowed, 4)


async def test_one_object_that_cannot_be_dealt_with_holds_up_no_other(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create(DEPLOYMENTS, deployment("bad"))
    cluster.create(DEPLOYMENTS, deployment("good", replicas=1))
    sound = rollout.bounds

    def broken(shown: Object) -> Bounds:
        if name_of(shown) == "bad":
            raise KeyError("oops")
        return sound(shown)

    monkeypatch.setattr(rollout, "bounds", broken)
    await cluster.settle()
    assert [labels_of(made)["app"] for made in cluster.pods()] == ["good"]
    monkeypatch.undo()
    await cluster.clock.advance(5)
    await cluster.settle()
    assert len(cluster.pods()) == 4
