"""Who stands behind an extended resource, and whether it can go: from what the API shows, and from the kubelet."""

import msgspec
import pytest

from colocate.devices.extended_resources import (
    GRACE,
    LATE,
    Before,
    ExtendedResource,
    Holder,
    ResourceState,
    judge,
    remember,
)
from colocate.devices.node_facts import KubeletFacts, NodeRecords, Writer
from colocate.devices.requests import Marks, RequestingContainer, RequestingPod, Spec, Status
from colocate.model.pod import Resources

FAN = "example.com/fan"
NOW = 1_700_000_000.0


def kubelet(wrote: float, *capacity: str, name: str = "kubelet") -> Writer:
    return Writer(name, wrote, frozenset(capacity), beats=True)


def hand(*capacity: str) -> Writer:
    return Writer("kubectl-patch", NOW - 5000, frozenset(capacity), beats=False)


NOTHING = KubeletFacts()


def node(
    capacity: int | None,
    allocatable: int | None,
    *writers: Writer,
    silent: bool = False,
    kubelet: KubeletFacts = NOTHING,
    signed: bool = True,
) -> NodeRecords:
    return NodeRecords(
        name="n1",
        capacity={"cpu": "2"} | ({} if capacity is None else {FAN: str(capacity)}),
        allocatable={"cpu": "2"} | ({} if allocatable is None else {FAN: str(allocatable)}),
        writers=writers if signed else None,
        heartbeat=NOW - 100,
        silent=silent,
        kubelet=kubelet,
    )


def judged(facts: NodeRecords, now: float = NOW, before: Before | None = None) -> ExtendedResource:
    (found,) = judge(facts, [], now, {FAN: before} if before else None)
    return found


BESIDE = "example.com/fan-speed"


@pytest.mark.parametrize(
    ("fans", "healthy", "state"),
    [
        (4, 4, ResourceState.ALIVE),
        (4, 0, ResourceState.HAND_PATCHED),
        (0, 0, ResourceState.HAND_PATCHED),
    ],
)
def test_what_an_agent_writes_beside_its_plugin_is_its_own_as_long_as_the_plugin_lives(
    fans: int, healthy: int, state: ResourceState
) -> None:
    facts = msgspec.structs.replace(
        node(fans, healthy, kubelet(NOW - 5, FAN), hand(BESIDE)),
        capacity={FAN: str(fans), BESIDE: "100"},
        allocatable={FAN: str(healthy), BESIDE: "100"},
        beside={BESIDE: FAN},
    )
    _, beside = judge(facts, [], NOW)
    assert (beside.name, beside.state) == (BESIDE, state)
    assert ("writes it beside" in beside.reason) is (state is ResourceState.ALIVE)
    alone = msgspec.structs.replace(facts, capacity={BESIDE: "100"}, allocatable={BESIDE: "100"})
    assert judge(alone, [], NOW)[0].state is ResourceState.HAND_PATCHED


def verdict(facts: NodeRecords, now: float = NOW, before: Before | None = None) -> tuple[ResourceState, bool]:
    found = judged(facts, now, before)
    return found.state, found.certain


# What the API alone shows


def test_a_plugin_that_the_kubelet_reports_is_alive() -> None:
    found = judged(node(4, 3, kubelet(NOW - 100, FAN)))
    assert (found.state, found.certain) == (ResourceState.ALIVE, True)
    assert "1 of 4 unhealthy" in found.reason


def test_what_a_node_was_registered_with_has_no_writer_and_is_the_kubelets() -> None:
    assert verdict(node(4, 4, kubelet(NOW - 100))) == (ResourceState.ALIVE, True)


@pytest.mark.parametrize("allocatable", [4, None])
def test_a_capacity_that_another_than_the_kubelet_wrote_is_hand_patched(allocatable: int | None) -> None:
    found = judged(node(4, allocatable, kubelet(NOW - 100), hand(FAN)))
    assert (found.state, found.certain) == (ResourceState.HAND_PATCHED, False)
    assert "kubectl-patch" in found.reason


def test_the_kubelet_is_known_by_its_heartbeats_whatever_it_is_called() -> None:
    assert verdict(node(4, 4, kubelet(NOW - 100, FAN, name="k3s"))) == (ResourceState.ALIVE, True)


def test_less_allocatable_than_capacity_is_a_plugins_doing_whoever_wrote_the_capacity() -> None:
    assert verdict(node(4, 3, kubelet(NOW - 100), hand(FAN)))[0] is ResourceState.ALIVE


def test_a_hand_over_a_plugins_number_cannot_be_told_from_one_over_its_own_until_the_next_sync() -> None:
    late = Writer("kubectl-patch", NOW - 5, frozenset({FAN}), beats=False)
    assert verdict(node(8, 7, kubelet(NOW - 6), late)) == (ResourceState.UNKNOWN, False)
    assert verdict(node(8, 0, kubelet(NOW - 6), late)) == (ResourceState.UNKNOWN, False)


def test_a_server_that_records_no_writers_leaves_a_plugin_and_a_hand_alike() -> None:
    assert verdict(node(4, 4, signed=False)) == (ResourceState.UNKNOWN, False)
    assert verdict(node(4, 3, signed=False)) == (ResourceState.ALIVE, True)
    found = judged(node(4, 0, signed=False))
    assert (found.state, found.remaining) == (ResourceState.STALE, GRACE - 100), (
        "heartbeats have times all the same"
    )


def test_capacity_without_allocatable_is_stale_and_counts_down_from_the_kubelets_last_word() -> None:
    found = judged(node(4, 0, kubelet(NOW - 100, FAN)))
    assert (found.state, found.certain, found.remaining) == (ResourceState.STALE, False, 200)
    assert "no healthy device" in found.reason, "that is what else it could be"
    assert found.is_stale


def test_an_earlier_look_makes_the_end_of_the_grace_more_certain() -> None:
    first = judge(node(4, 0, kubelet(NOW - 100, FAN)), [], NOW)
    beat = node(4, 0, kubelet(NOW + 120, FAN))
    (later,) = judge(beat, [], NOW + 150, remember(first))
    assert later.remaining == 50, "a heartbeat in between does not begin it anew"
    assert judged(beat, NOW + 150).remaining == 270, "but who has not looked before cannot know"


def test_a_clock_that_is_behind_the_servers_never_shows_more_than_the_whole_grace() -> None:
    assert judged(node(4, 0, kubelet(NOW + 9999, FAN))).remaining == GRACE


def test_capacity_that_outlives_the_grace_is_a_live_plugin_without_a_healthy_device() -> None:
    old = kubelet(NOW - GRACE - LATE - 1, FAN)
    assert verdict(node(4, 0, old)) == (ResourceState.UNHEALTHY, False)
    before = Before(gone_by=NOW - GRACE - LATE - 1)
    assert verdict(node(4, 0, kubelet(NOW - 10, FAN)), before=before)[0] is ResourceState.UNHEALTHY


def test_a_key_at_0_can_go_unless_the_kubelet_has_just_started() -> None:
    recent = judged(node(0, 0, kubelet(NOW - 100, FAN)))
    assert (recent.state, recent.certain) == (ResourceState.REMOVABLE, False)
    assert "unless it started" in recent.reason
    assert verdict(node(0, 0, kubelet(NOW - GRACE - LATE - 1, FAN))) == (ResourceState.REMOVABLE, True)


def test_a_key_at_0_that_was_put_back_is_stale_for_another_grace() -> None:
    before = Before(put_back=NOW - 60)
    found = judged(node(0, 0, kubelet(NOW - 60, FAN)), before=before)
    assert (found.state, found.certain, found.remaining) == (ResourceState.STALE, True, 240)
    assert verdict(node(0, 0, kubelet(NOW, FAN)), NOW + GRACE, before)[0] is ResourceState.REMOVABLE


def test_a_hand_that_wrote_0_can_be_undone() -> None:
    assert verdict(node(0, 0, kubelet(NOW - 100), hand(FAN)))[0] is ResourceState.HAND_PATCHED


def test_a_key_that_is_in_allocatable_alone_is_leaving() -> None:
    assert verdict(node(None, 0, kubelet(NOW, FAN))) == (ResourceState.LEAVING, True)


def test_of_a_silent_kubelet_nothing_is_certain_and_no_time_runs() -> None:
    writer = kubelet(NOW - 5000, FAN)
    assert verdict(node(4, 4, writer, silent=True)) == (ResourceState.ALIVE, False)
    assert verdict(node(0, 0, writer, silent=True)) == (ResourceState.REMOVABLE, False)
    found = judged(node(4, 0, writer, silent=True))
    assert (found.state, found.remaining) == (ResourceState.STALE, None)


# What the kubelet says itself, on its own node


def test_podresources_shows_a_plugin_before_the_status_does() -> None:
    facts = node(4, 0, kubelet(NOW - 100, FAN), kubelet=KubeletFacts({FAN: 4}, {FAN: 4}))
    assert verdict(facts) == (ResourceState.ALIVE, True)


def test_ids_in_the_checkpoint_without_healthy_ones_are_a_plugin_that_has_gone_for_certain() -> None:
    facts = node(4, 0, kubelet(NOW - 100, FAN), kubelet=KubeletFacts({FAN: 4}, {}))
    assert verdict(facts) == (ResourceState.STALE, True)
    facts = node(4, 0, kubelet(NOW - 100, FAN), kubelet=KubeletFacts({FAN: 0}, {}))
    assert verdict(facts) == (ResourceState.STALE, False)


def test_a_resource_that_the_checkpoint_does_not_know_is_nobodys_or_a_hands() -> None:
    known = KubeletFacts({"example.com/other": 1}, {})
    assert verdict(node(0, 0, kubelet(NOW, FAN), kubelet=known)) == (ResourceState.REMOVABLE, True)
    assert verdict(node(4, 4, kubelet(NOW), hand(FAN), kubelet=known)) == (ResourceState.HAND_PATCHED, True)


def test_a_key_at_0_that_the_checkpoint_still_knows_would_be_put_back() -> None:
    known = KubeletFacts({FAN: 4}, {})
    found = judged(node(0, 0, kubelet(NOW - 100, FAN), kubelet=known))
    assert (found.state, found.remaining) == (ResourceState.STALE, 200)
    before_it_started = Before(gone_by=NOW - 9999)
    found = judged(node(0, 0, kubelet(NOW - 100, FAN), kubelet=known), before=before_it_started)
    assert (found.state, found.remaining) == (ResourceState.STALE, 200), "a kubelet that starts counts anew"
    first = judge(node(0, 0, kubelet(NOW - 100, FAN), kubelet=known), [], NOW)
    beat = node(0, 0, kubelet(NOW + 20, FAN), kubelet=known)
    (later,) = judge(beat, [], NOW + 30, remember(first))
    assert later.remaining == 170, "a heartbeat in between does not begin it anew"
    old = kubelet(NOW - GRACE - LATE - 1, FAN)
    assert verdict(node(0, 0, old, kubelet=known)) == (ResourceState.UNHEALTHY, False)


def test_a_hand_patched_capacity_that_the_checkpoint_knows_is_a_plugins() -> None:
    known = KubeletFacts({FAN: 4}, None)
    assert verdict(node(4, 4, kubelet(NOW), hand(FAN), kubelet=known))[0] is ResourceState.ALIVE


# Which resources, and who holds them


def test_only_extended_resources_are_judged() -> None:
    own = dict.fromkeys(
        ["cpu", "memory", "pods", "hugepages-2Mi", "ephemeral-storage", "attachable-volumes-aws-ebs"], "1"
    )
    reserved = {"scheduling.kubernetes.io/foo": "1", "kubernetes.io/batch-cpu": "1", "requests.x.com/y": "1"}
    facts = NodeRecords(name="n1", capacity={**own, **reserved, "mock/gpu": "1k"})
    (found,) = judge(facts, [], NOW)
    assert (found.name, found.capacity) == ("mock/gpu", 1000)


def test_pods_that_have_not_finished_hold_what_they_ask_for() -> None:
    def pod(name: str, phase: str, where: str = "n1") -> RequestingPod:
        container = RequestingContainer(Resources(requests={FAN: "2"}))
        return RequestingPod(Marks(name, "default"), Spec(where, (container,)), Status(phase))

    pods = [pod("b", "Running"), pod("a", "Pending"), pod("c", "Succeeded"), pod("d", "Running", "n2")]
    (found,) = judge(node(4, 4, kubelet(NOW, FAN)), pods, NOW)
    assert found.requested == 4
    assert found.holders == (Holder("default/a", 2), Holder("default/b", 2))
