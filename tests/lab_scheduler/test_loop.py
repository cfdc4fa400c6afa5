"""The scheduler over a store: pods get nodes, events and conditions, whatever happens meanwhile."""

from collections import Counter
from random import Random
from typing import Any

import pytest

from colocate.lab.api import pods
from colocate.lab.api.deletion import delete
from colocate.lab.api.objects import Object, condition, is_terminating
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.resources import NODES, PODS
from colocate.lab.api.status import conflict
from colocate.lab.scheduler.loop import Scheduler

from .conftest import scheduling
from .lab import GPU, Lab, named, recorded, taint


async def test_pods_are_bound_and_said_to_be(lab: Lab) -> None:
    lab.add_node("n1")
    lab.add_pod("before")
    async with scheduling(lab) as scheduler:
        lab.add_pod("after", {"cpu": "1"})
        await scheduler.settled()
        assert lab.placed() == {"before": "n1", "after": "n1"}
        assert scheduler.waiting == 0
    said = condition(lab.pod("after"), "PodScheduled")
    assert said is not None
    assert said["status"] == "True"
    event = next(one for one in lab.events("Scheduled") if one["involvedObject"]["name"] == "after")
    assert event["message"] == "Successfully assigned default/after to n1"
    assert (event["type"], event["action"]) == ("Normal", "Binding")
    assert (event["reportingComponent"], event["reportingInstance"]) == (
        "default-scheduler",
        "default-scheduler-vm",
    )


async def test_the_recorded_unschedulable_pod(lab: Lab) -> None:
    shown, event = recorded("pod-unschedulable.json"), recorded("events-unschedulable.json")["items"][0]
    for number in range(1000):
        lab.add_node(f"n{number}")
    async with scheduling(lab, named("plain")) as scheduler:
        lab.add_pod("unschedulable", {"test.com/colocation-memory": "400"}, schedulerName="plain")
        await scheduler.settled()
    (said,) = lab.pod("unschedulable")["status"]["conditions"]
    (expected,) = shown["status"]["conditions"]
    assert list(said) == list(expected)
    assert said | {"lastTransitionTime": ""} == expected | {"lastTransitionTime": ""}
    (written,) = lab.events("FailedScheduling")
    theirs = {"metadata", "involvedObject", "eventTime"}
    assert {key: value for key, value in written.items() if key not in theirs} == {
        key: value for key, value in event.items() if key not in theirs
    }
    assert list(written["involvedObject"]) == list(event["involvedObject"])
    assert written["metadata"]["name"].startswith("unschedulable.")
    assert len(written["eventTime"]) == len(event["eventTime"])


async def test_the_reasons_of_different_nodes_are_counted(lab: Lab) -> None:
    lab.add_node("full", cpu="1")
    lab.add_node("small", cpu="1")
    lab.add_node("tainted", taints=[taint("dedicated", value="gpu")])
    lab.add_node("elsewhere", labels={"zone": "z2"})
    for name in ("full", "small", "tainted"):
        lab.registry.modify(NODES, "", name, lambda body: body["metadata"].update(labels={"zone": "z1"}))
    async with scheduling(lab) as scheduler:
        lab.add_pod("filler", {"cpu": "1"}, nodeName="full")
        lab.add_pod("wanting", {"cpu": "1", GPU: "1"}, nodeSelector={"zone": "z1"})
        await scheduler.settled()
    assert lab.why("wanting") == (
        "0/4 nodes are available: 1 Insufficient cpu, "
        "1 node(s) didn't match Pod's node affinity/selector, "
        "1 node(s) had untolerated taint {dedicated: gpu}, "
        f"2 Insufficient {GPU}. no new claims to deallocate, preemption: 0/4 nodes are available: "
        "4 Preemption is not helpful for scheduling."
    )


async def test_a_cluster_without_nodes(lab: Lab) -> None:
    async with scheduling(lab) as scheduler:
        lab.add_pod("lonely")
        await scheduler.settled()
        assert lab.why("lonely") == "no nodes available to schedule pods"
        lab.add_node("n1")
        await lab.clock.advance(1)
        await scheduler.settled()
        assert lab.node_of("lonely") == "n1"


def _uncordon(lab: Lab) -> None:
    lab.change_node("n1", unschedulable=False)


def _untaint(lab: Lab) -> None:
    lab.change_node("n1", taints=[])


def _label(lab: Lab) -> None:
    lab.registry.modify(NODES, "", "n1", lambda body: body["metadata"].update(labels={"zone": "z1"}))


@pytest.mark.parametrize(
    ("prepare", "spec", "change"),
    [
        (lambda lab: lab.change_node("n1", unschedulable=True), {}, _uncordon),
        (lambda lab: lab.change_node("n1", taints=[taint("a")]), {}, _untaint),
        (lambda lab: None, {"nodeSelector": {"zone": "z1"}}, _label),
        (lambda lab: None, {"requests": {GPU: "1"}}, lambda lab: lab.offer("n1", gpu="1")),
        (lambda lab: lab.add_pod("big", {"cpu": "4"}), {"requests": {"cpu": "1"}},
         lambda lab: lab.delete_pod("big")),
        (lambda lab: None, {"requests": {"cpu": "8"}}, lambda lab: lab.add_node("n2", cpu="8")),
    ],
    ids=["uncordon", "untaint", "label", "resource", "pod deleted", "node added"],
)  # fmt: skip
async def test_a_waiting_pod_is_placed_when_what_stood_in_its_way_is_gone(
    lab: Lab, prepare: Any, spec: Any, change: Any
) -> None:
    lab.add_node("n1")
    prepare(lab)
    async with scheduling(lab) as scheduler:
        lab.add_pod("waiting", **spec)
        await scheduler.settled()
        assert lab.node_of("waiting") is None
        await lab.clock.advance(5)
        await scheduler.settled()
        assert len(lab.events("FailedScheduling")) == 1
        assert "series" not in lab.events("FailedScheduling")[0], "nothing was tried in vain"
        change(lab)
        await scheduler.settled()
        assert lab.node_of("waiting")


async def test_a_heartbeat_wakes_no_pod_and_repetitions_are_counted_in_one_event(lab: Lab) -> None:
    lab.add_node("n1")
    async with scheduling(lab) as scheduler:
        lab.add_pod("waiting", {"cpu": "8"})
        await scheduler.settled()
        before = lab.pod("waiting")
        await lab.clock.advance(20)
        lab.registry.modify(
            NODES, "", "n1", lambda body: body["status"].update(nodeInfo={"bootID": "1"}), "status"
        )
        await scheduler.settled()
        assert "series" not in lab.events("FailedScheduling")[0]
        lab.offer("n1", cpu="5")
        await scheduler.settled()
        (event,) = lab.events("FailedScheduling")
        assert event["series"]["count"] == 2
        assert lab.pod("waiting") == before, "a status that says the same is not written again"


async def test_several_scheduler_names_and_those_of_others(lab: Lab) -> None:
    lab.add_node("n1")
    lab.add_pod("plain")
    lab.add_pod("ours-1", schedulerName="one")
    lab.add_pod("ours-2", schedulerName="two")
    async with scheduling(lab, named("one", "two")):
        pass
    assert set(lab.placed()) == {"ours-1", "ours-2"}
    assert {event["reportingComponent"] for event in lab.events()} == {"one", "two"}


async def test_two_schedulers_over_one_cluster_count_each_others_pods(lab: Lab) -> None:
    lab.add_node("n1", cpu="2")
    for number in range(4):
        lab.add_pod(f"a{number}", {"cpu": "1"}, schedulerName="one")
        lab.add_pod(f"b{number}", {"cpu": "1"}, schedulerName="two")
    async with (
        Scheduler(lab.registry, named("one"), Random(1)) as one,
        Scheduler(lab.registry, named("two"), Random(1)) as two,
    ):
        await one.settled()
        await two.settled()
    assert len(lab.placed()) == 2


async def test_scheduling_gates_are_waited_for(lab: Lab) -> None:
    lab.add_node("n1")
    async with scheduling(lab) as scheduler:
        lab.add_pod("gated", schedulingGates=[{"name": "example.com/wait"}])
        await scheduler.settled()
        said = condition(lab.pod("gated"), "PodScheduled")
        assert said is not None
        assert (said["status"], said["reason"]) == ("False", "SchedulingGated")
        assert lab.events() == []
        lab.registry.modify(PODS, "default", "gated", lambda body: body["spec"].update(schedulingGates=[]))
        await scheduler.settled()
        assert lab.node_of("gated") == "n1"


async def test_the_more_important_pod_gets_the_room(lab: Lab) -> None:
    lab.add_node("n1", cpu="1")
    lab.add_priority("high", 1000)
    lab.add_pod("low", {"cpu": "1"})
    lab.add_pod("high", {"cpu": "1"}, priorityClassName="high")
    async with scheduling(lab):
        pass
    assert lab.placed() == {"high": "n1"}


async def test_finished_pods_hold_nothing_and_stopping_ones_all(lab: Lab) -> None:
    lab.add_node("n1", cpu="2")
    async with scheduling(lab) as scheduler:
        lab.add_pod("job", {"cpu": "1"})
        lab.add_pod("service", {"cpu": "1"}, terminationGracePeriodSeconds=30)
        lab.add_pod("next", {"cpu": "1"})
        await scheduler.settled()
        delete(lab.registry, PODS, "default", "service")
        assert is_terminating(lab.pod("service"))
        await lab.clock.advance(5)
        await scheduler.settled()
        assert lab.node_of("next") is None
        lab.registry.modify(
            PODS, "default", "job", lambda body: body["status"].update(phase="Succeeded"), "status"
        )
        await scheduler.settled()
        assert lab.node_of("next") == "n1"


async def test_a_pod_that_another_scheduler_binds_first_is_left_to_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.add_node("n1")
    sound = pods.bind

    def raced(registry: ObjectRegistry, namespace: str, name: str, body: Object, dry_run: bool) -> None:
        sound(registry, namespace, name, {"target": {"name": "theirs"}}, dry_run)
        sound(registry, namespace, name, body, dry_run)

    monkeypatch.setattr(pods, "bind", raced)
    async with scheduling(lab) as scheduler:
        lab.add_pod("contested")
        await scheduler.settled()
        assert lab.node_of("contested") == "theirs"
        assert (scheduler.waiting, lab.events()) == (0, [])


async def test_a_binding_that_is_refused_is_tried_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.add_node("n1")
    expected = recorded("binding-conflict.json")["message"].replace("s1", "refused")

    def refused(*_: object, **__: object) -> None:
        raise conflict("pods/binding", "refused", 'pod refused is already assigned to node "k8s-node-0004"')

    with monkeypatch.context() as patched:
        patched.setattr(pods, "bind", refused)
        async with scheduling(lab) as scheduler:
            lab.add_pod("refused")
            await scheduler.settled()
            said = condition(lab.pod("refused"), "PodScheduled")
            assert said is not None
            assert (said["reason"], said["message"]) == ("SchedulerError", f"binding rejected: {expected}")
            patched.undo()
            await lab.clock.advance(1)
            await scheduler.settled()
            assert lab.node_of("refused") == "n1"


async def test_a_fault_in_one_pod_is_not_the_end_of_the_others(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.add_node("n1")
    sound = pods.bind

    def broken(registry: ObjectRegistry, namespace: str, name: str, *rest: Any, **more: Any) -> None:
        if name == "bad":
            raise KeyError("oops")
        sound(registry, namespace, name, *rest, **more)

    monkeypatch.setattr(pods, "bind", broken)
    async with scheduling(lab) as scheduler:
        lab.add_pod("bad")
        lab.add_pod("good")
        await scheduler.settled()
        assert lab.placed() == {"good": "n1"}
        assert lab.why("bad") == "KeyError: 'oops'"


async def test_an_object_that_cannot_be_read_is_passed_over(lab: Lab) -> None:
    lab.add_node("n1")
    async with scheduling(lab) as scheduler:
        lab.add_pod("odd", affinity={"nodeAffinity": "none"})
        lab.add_pod("even")
        await scheduler.settled()
        assert lab.placed() == {"even": "n1"}


async def test_nodes_come_and_go(lab: Lab) -> None:
    async with scheduling(lab) as scheduler:
        lab.add_node("n1", cpu="1")
        lab.add_pod("first", {"cpu": "1"})
        await scheduler.settled()
        lab.delete_node("n1")
        lab.add_pod("second", {"cpu": "1"})
        await scheduler.settled()
        assert lab.node_of("second") is None, "never on a node that is gone"
        lab.add_node("n1", cpu="2")
        await lab.clock.advance(1)
        await scheduler.settled()
        assert lab.node_of("second") == "n1"
        lab.add_pod("third", {"cpu": "1"})
        await scheduler.settled()
        assert lab.node_of("third") is None, "the first pod is still counted on the node that came back"


async def test_forgotten_history_is_made_up_for(lab: Lab) -> None:
    lab.add_node("n1", cpu="2")
    async with scheduling(lab) as scheduler:
        lab.add_pod("a", {"cpu": "1"})
        lab.add_pod("b", {"cpu": "1"})
        await scheduler.settled()
        lab.delete_pod("a")
        lab.add_node("n2", cpu="1")
        lab.delete_node("n2")
        lab.add_pod("c", {"cpu": "1"})
        lab.add_pod("d", {"cpu": "1"})
        lab.store.expire()
        await scheduler.settled()
        assert lab.placed() == {"b": "n1", "c": "n1"}
        assert scheduler.waiting == 1


async def test_start_and_stop_leave_everything_for_the_next(lab: Lab) -> None:
    lab.add_node("n1", cpu="2")
    async with scheduling(lab):
        pass
    lab.add_pod("a", {"cpu": "1"})
    for _ in range(2):
        async with scheduling(lab):
            lab.add_pod(f"b{len(lab.placed())}", {"cpu": "1"})
    async with scheduling(lab) as scheduler:
        assert len(lab.placed()) == 2
        assert scheduler.waiting == 1


async def test_pods_keep_off_nodes_that_had_rather_be_left_alone(lab: Lab) -> None:
    for number in range(250):
        taints = [taint(f"t{one}", "PreferNoSchedule") for one in range(number % 5)]
        lab.add_node(f"n{number}", taints=taints, cpu="64", memory="256Gi")
    for number in range(250):
        lab.add_pod(f"p{number}", {"cpu": "50m", "memory": "100Mi"})
    async with scheduling(lab):
        pass
    used = Counter(lab.placed().values())
    assert sum(used.values()) == 250
    assert all(int(name[1:]) % 5 == 0 for name in used), "all on the nodes without such a taint"
    assert len(used) >= 48, "and spread over the 50 of them"
