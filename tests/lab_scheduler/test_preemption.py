"""Which pods are preempted for which: from the least harm to what the objects show."""

import pytest

from colocate.lab.api.changes import Stored, StoreKey
from colocate.lab.api.objects import Object, condition, is_terminating
from colocate.lab.api.resources import DISRUPTION_BUDGETS
from colocate.lab.api.selectors import LabelSelector, from_object
from colocate.lab.scheduler import preemption
from colocate.lab.scheduler.cluster import ClusterNode
from colocate.lab.scheduler.facts import SchedulablePod
from colocate.lab.scheduler.filters import check
from colocate.lab.scheduler.preemption import Budget
from colocate.lab.scheduler.requests import PodRequests

from .conftest import scheduling
from .lab import Lab, node_facts, taint


def facts(uid: str, cpu: int, priority: int = 0, started: float = 0, app: str = "") -> SchedulablePod:
    return SchedulablePod(
        "default",
        uid,
        uid,
        PodRequests({"cpu": cpu}),
        labels={"app": app},
        priority=priority,
        started=started,
    )


def holding(*pods: SchedulablePod, name: str = "n", cpu: str = "4") -> ClusterNode:
    stored = Stored(StoreKey("nodes", "", name), 1, {}, b"{}")
    found = ClusterNode(node_facts(name=name, cpu=cpu), stored)
    for pod in pods:
        found.enter(pod)
    return found


def app(name: str) -> LabelSelector:
    return from_object({"matchLabels": {"app": name}})


def decide(
    pod: SchedulablePod, *nodes: ClusterNode, budgets: list[Budget] | None = None
) -> preemption.PreemptionOutcome:
    rejections = {one.node.name: check(pod, one.node, one.account_for(pod)) for one in nodes}
    assert all(rejections.values()), "the pod fits as it is"
    return preemption.decide(pod, nodes, {k: v for k, v in rejections.items() if v}, budgets or [])


def victims(outcome: preemption.PreemptionOutcome) -> tuple[str, list[str]]:
    assert outcome.plan is not None, outcome.message
    return outcome.plan.node, [pod.uid for pod in outcome.plan.victims]


def test_as_few_as_possible_and_the_least_important_go() -> None:
    node = holding(facts("a", 1000, 1), facts("b", 1000, 2), facts("c", 2000, 3))
    assert victims(decide(facts("new", 1000, 9), node)) == ("n", ["a"])
    assert victims(decide(facts("new", 2000, 9), node)) == ("n", ["b", "a"])
    assert victims(decide(facts("new", 3000, 9), node)) == ("n", ["c", "a"])


def test_the_young_go_before_the_old() -> None:
    node = holding(facts("old", 2000, 0, started=1), facts("young", 2000, 0, started=2))
    assert victims(decide(facts("new", 1000, 9), node)) == ("n", ["young"])


@pytest.mark.parametrize("priority", [0, 5])
def test_equals_and_betters_stay(priority: int) -> None:
    outcome = decide(facts("new", 1000, priority), holding(facts("a", 4000, 5)))
    assert outcome.plan is None
    assert outcome.message == (
        "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
    )


def test_the_node_with_the_least_important_victims_is_chosen() -> None:
    new = facts("new", 4000, 9)
    important = holding(facts("a", 4000, 5), name="important")
    many = holding(facts("b", 2000, 1), facts("c", 2000, 1), name="many")
    one = holding(facts("d", 4000, 1, started=1), name="one")
    younger = holding(facts("e", 4000, 1, started=2), name="younger")
    assert victims(decide(new, important, many))[0] == "many"
    assert victims(decide(new, important, many, one))[0] == "one"
    assert victims(decide(new, important, many, one, younger))[0] == "younger"


def test_budgets_are_kept_where_possible() -> None:
    new = facts("new", 4000, 9)
    kept = holding(facts("a", 4000, 0, app="kept"), name="kept")
    free = holding(facts("b", 4000, 8, app="free"), name="free")
    budgets = [Budget("default", app("kept"), 0), Budget("elsewhere", app("free"), 0)]
    assert victims(decide(new, kept, free, budgets=budgets)) == ("free", ["b"])
    outcome = decide(new, kept, budgets=budgets)
    assert victims(outcome) == ("kept", ["a"])
    assert outcome.plan is not None
    assert outcome.plan.violations == 1


def test_a_budget_protects_only_as_many_as_it_must() -> None:
    node = holding(*(facts(f"a{number}", 1000, 0, started=number, app="kept") for number in range(4)))
    budget = Budget("default", app("kept"), 2)
    outcome = decide(facts("new", 2000, 9), node, budgets=[budget])
    assert outcome.plan is not None
    assert (len(outcome.plan.victims), outcome.plan.violations) == (2, 0)


def test_who_must_not_preempt_does_not() -> None:
    polite = SchedulablePod(
        "default", "new", "new", PodRequests({"cpu": 1000}), priority=9, may_preempt=False
    )
    outcome = decide(polite, holding(facts("a", 4000)))
    assert (outcome.plan, outcome.message) == (
        None,
        "preemption: not eligible due to preemptionPolicy=Never.",
    )


def _fill(lab: Lab, *names: str, **spec: object) -> None:
    for name in names:
        lab.add_pod(name, {"cpu": "2"}, **spec)


async def test_the_way_of_a_preemption(lab: Lab) -> None:
    lab.add_node("n1", cpu="4")
    lab.add_node("n2", cpu="4", taints=[taint("a")])
    lab.add_priority("high", 1000)
    async with scheduling(lab) as scheduler:
        _fill(lab, "low-1", "low-2", terminationGracePeriodSeconds=30)
        await scheduler.settled()
        lab.add_pod("high", {"cpu": "2"}, priorityClassName="high")
        await scheduler.settled()
        high = lab.pod("high")
        assert high["status"]["nominatedNodeName"] == "n1"
        assert lab.why("high") == (
            "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint {a: }."
        )
        (victim,) = (name for name in ("low-1", "low-2") if is_terminating(lab.pod(name)))
        said = condition(lab.pod(victim), "DisruptionTarget")
        assert said is not None
        assert (said["status"], said["reason"]) == ("True", "PreemptionByScheduler")
        assert said["message"] == "default-scheduler: preempting to accommodate a higher priority pod"
        (event,) = lab.events("Preempted")
        assert event["message"] == f"Preempted by pod {high['metadata']['uid']} on node n1"
        assert (event["involvedObject"]["name"], event["related"]["name"]) == (victim, "high")

        lab.delete_pod(victim)
        lab.add_pod("late", {"cpu": "2"})
        await scheduler.settled()
        assert lab.node_of("late") is None, "the room is kept for the pod that preempted"
        await lab.clock.advance(1)
        await scheduler.settled()
        assert lab.node_of("high") == "n1"
        assert lab.node_of("late") is None
        assert len(lab.events("Preempted")) == 1


async def test_room_that_is_being_made_is_waited_for(lab: Lab) -> None:
    lab.add_node("n1", cpu="4")
    lab.add_priority("high", 1000)
    async with scheduling(lab) as scheduler:
        _fill(lab, "low-1", "low-2", terminationGracePeriodSeconds=30)
        await scheduler.settled()
        lab.add_pod("high", {"cpu": "2"}, priorityClassName="high")
        await scheduler.settled()
        await lab.clock.advance(301)
        await scheduler.settled()
        assert len(lab.events("Preempted")) == 1
        assert lab.why("high").endswith(
            "preemption: not eligible due to terminating pod on the nominated node."
        )
        assert lab.pod("high")["status"]["nominatedNodeName"] == "n1"


async def test_a_polite_priority_class(lab: Lab) -> None:
    lab.add_node("n1", cpu="4")
    lab.add_priority("polite", 1000, preemptionPolicy="Never")
    async with scheduling(lab) as scheduler:
        _fill(lab, "low-1", "low-2")
        await scheduler.settled()
        lab.add_pod("polite", {"cpu": "2"}, priorityClassName="polite")
        await scheduler.settled()
    assert set(lab.placed()) == {"low-1", "low-2"}
    assert lab.why("polite").endswith("preemption: not eligible due to preemptionPolicy=Never.")


def _budget(name: str, minimum: int) -> Object:
    return {
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": name}}, "minAvailable": minimum},
    }


async def test_pods_outside_of_budgets_go_first(lab: Lab) -> None:
    lab.add_node("n1", cpu="4")
    lab.add_priority("high", 1000)
    lab.registry.create(DISRUPTION_BUDGETS, "default", _budget("kept", 1))
    async with scheduling(lab) as scheduler:
        _fill(lab, "free-1", "kept-1")
        await scheduler.settled()
        lab.run("free-1")
        lab.run("kept-1")
        lab.add_pod("high", {"cpu": "2"}, priorityClassName="high")
        await scheduler.settled()
        await lab.clock.advance(1)
        await scheduler.settled()
        assert lab.placed() == {"high": "n1", "kept-1": "n1"}


async def test_lesser_hopes_end_where_a_greater_pod_makes_room(lab: Lab) -> None:
    lab.add_node("n1", cpu="2")
    lab.add_priority("middle", 10)
    lab.add_priority("high", 1000)
    async with scheduling(lab) as scheduler:
        _fill(lab, "low", terminationGracePeriodSeconds=30)
        await scheduler.settled()
        lab.add_pod("middle", {"cpu": "2"}, priorityClassName="middle")
        await scheduler.settled()
        assert lab.pod("middle")["status"]["nominatedNodeName"] == "n1"
        lab.add_pod("high", {"cpu": "2"}, priorityClassName="high")
        await scheduler.settled()
        assert lab.pod("high")["status"]["nominatedNodeName"] == "n1"
        assert "nominatedNodeName" not in lab.pod("middle")["status"]
