"""What counts as online, and what is kept: given readings, when reckoned, then figures."""

import msgspec
import pytest

from colocate.memory.forecast import DEFAULT_EVICTION, safety_of
from colocate.memory.usage import UsageView, far_ids, measure
from colocate.model.memory import (
    ContainerMemory,
    KubeletReserves,
    NodeMemory,
    NumaMemory,
    PodIdentity,
    PodMemory,
)
from colocate.model.pod import QosClass
from tests.memory.nodes import GIB, MIB

VIEWS = list(UsageView)
NONE: dict[str, int] = {}
NO_FAR: frozenset[int] = frozenset()


def node(used: int, active: int = 0, inactive: int = 0, total: int = 64 * GIB, **more: int) -> NodeMemory:
    """Where `used` cannot be had, and cache is beside it."""
    free = total - used - active - inactive
    return NodeMemory(
        total=total,
        available=total - used,
        free=free,
        inactive_file=inactive,
        hugepages=more.get("hugepages", 0),
    )


def pod(
    uid: str,
    anon: int,
    active: int = 0,
    inactive: int = 0,
    qos: QosClass = QosClass.BURSTABLE,
    numa: dict[int, int] | None = None,
) -> PodMemory:
    return PodMemory(
        uid=uid,
        qos=qos,
        usage=anon + active + inactive,
        anon=anon,
        file=active + inactive,
        inactive_file=inactive,
        numa=numa,
    )


def test_everything_but_colocated_pods_is_online_whatever_its_class() -> None:
    readings = [
        pod("g", 4 * GIB, qos=QosClass.GUARANTEED),
        pod("b", 2 * GIB, qos=QosClass.BURSTABLE),
        pod("e", GIB, qos=QosClass.BEST_EFFORT),
        pod("sold", 8 * GIB, qos=QosClass.BEST_EFFORT),
    ]
    usage = measure(node(18 * GIB), readings, [], {"sold": 0}, NO_FAR, VIEWS)
    assert usage.system == 3 * GIB
    assert usage.online == 10 * GIB
    assert usage.colocated == {"sold": 8 * GIB}


def test_online_use_is_counted_once_although_free_memory_excludes_it() -> None:
    usage = measure(node(20 * GIB), [pod("b", 20 * GIB)], [], NONE, NO_FAR, VIEWS)
    assert usage.online == 20 * GIB


def test_inactive_page_cache_is_no_use() -> None:
    usage = measure(
        node(5 * GIB, inactive=30 * GIB), [pod("b", 4 * GIB, inactive=30 * GIB)], [], NONE, NO_FAR, VIEWS
    )
    assert usage.online == 5 * GIB


def test_active_page_cache_counts_because_the_kubelet_evicts_by_it_unless_told_otherwise() -> None:
    readings = [pod("b", 4 * GIB, active=30 * GIB)]
    machine = node(5 * GIB, active=30 * GIB)
    assert measure(machine, readings, [], NONE, NO_FAR, VIEWS).online == 35 * GIB
    assert measure(machine, readings, [], NONE, NO_FAR, [UsageView.KERNEL]).online == 5 * GIB


def test_cache_of_a_colocated_pod_never_hides_online_use() -> None:
    """Its cache is available by the kernel's word: deducting it as well would find less in use than there is."""
    machine = node(12 * GIB, active=6 * GIB)
    readings = [pod("sold", 2 * GIB, active=6 * GIB)]
    usage = measure(machine, readings, [], {"sold": 0}, NO_FAR, VIEWS)
    assert usage.online == 10 * GIB


def test_what_a_colocated_pod_requested_besides_its_blocks_is_online_as_far_as_it_uses_it() -> None:
    readings = [pod("sold", 20 * GIB, active=2 * GIB)]
    usage = measure(node(24 * GIB, active=2 * GIB), readings, [], {"sold": 21 * GIB}, NO_FAR, VIEWS)
    assert usage.colocated == {"sold": GIB}
    assert usage.online == 25 * GIB  # 4 GiB of the system, and 21 GiB of the pod's own.
    assert "Of that, 21 GiB is memory requested besides blocks; it counts as online." in usage.reasons
    less = measure(node(24 * GIB, active=2 * GIB), readings, [], {"sold": 30 * GIB}, NO_FAR, VIEWS)
    assert (less.colocated, less.online) == ({"sold": 0}, 26 * GIB)


def test_a_pod_that_cannot_be_read_counts_by_its_request() -> None:
    unread = PodIdentity(
        uid="new", namespace="shop", name="db", containers=(ContainerMemory(name="db", request=3 * GIB),)
    )
    usage = measure(node(5 * GIB), [], [unread], NONE, NO_FAR, VIEWS)
    assert usage.online == 8 * GIB
    assert any("count by their requests (3 GiB): shop/db" in reason for reason in usage.reasons)


def asking(
    *containers: ContainerMemory,
    whole_request: int | None = None,
    limit: int | None = None,
    overhead: int = 0,
) -> int:
    """The request of a pod of these containers, with what it says as a whole."""
    return PodIdentity(
        uid="u",
        namespace="n",
        name="p",
        containers=containers,
        whole_request=whole_request,
        limit=limit,
        overhead=overhead,
    ).request


def test_init_containers_count_by_the_most_that_runs_together() -> None:
    fetch = ContainerMemory(name="fetch", request=5 * GIB, init=True)
    proxy = ContainerMemory(name="proxy", request=GIB, init=True, sidecar=True)
    warm = ContainerMemory(name="warm", request=2 * GIB, init=True)
    main = ContainerMemory(name="main", request=3 * GIB)
    assert asking(fetch, proxy, warm, main) == 5 * GIB


def test_a_request_counts_the_runtimes_overhead() -> None:
    assert asking(ContainerMemory(name="main", request=GIB), overhead=160 * MIB) == GIB + 160 * MIB
    assert asking(overhead=160 * MIB) == 160 * MIB


def test_what_a_pod_asks_for_as_a_whole_goes_before_what_its_containers_do() -> None:
    main = ContainerMemory(name="main", request=GIB)
    assert asking(main, whole_request=3 * GIB, limit=4 * GIB, overhead=MIB) == 3 * GIB + MIB
    assert asking(main, limit=4 * GIB) == GIB, "as the API server fills it in"
    assert asking(ContainerMemory(name="main"), limit=4 * GIB) == 4 * GIB, "as the API server fills it in"


def far_machine(far_free: int, near_used: int) -> NodeMemory:
    near = NumaMemory(id=0, total=64 * GIB, free=64 * GIB - near_used)
    far = NumaMemory(id=2, total=32 * GIB, free=far_free, has_cpus=False)
    free = near.free + far.free
    return NodeMemory(total=96 * GIB, available=free, free=free, inactive_file=0, numa=(near, far))


def test_far_memory_is_not_sold_and_what_colocated_pods_have_there_is_theirs() -> None:
    machine = far_machine(far_free=30 * GIB, near_used=10 * GIB)
    sold = pod("sold", 6 * GIB, qos=QosClass.BEST_EFFORT, numa={0: 4 * GIB, 2: 2 * GIB})
    usage = measure(machine, [sold], [], {"sold": 0}, far_ids(machine, None), VIEWS)
    assert usage.near == 64 * GIB
    assert usage.capacity == 66 * GIB
    assert usage.online == 6 * GIB
    assert usage.far == {"sold": 2 * GIB}


def test_a_pod_whose_place_is_unknown_hides_no_online_use() -> None:
    machine = far_machine(far_free=28 * GIB, near_used=10 * GIB)
    sold = pod("sold", 6 * GIB)
    assert sold.numa is None
    usage = measure(machine, [sold], [], {"sold": 0}, far_ids(machine, None), VIEWS)
    assert usage.online == 8 * GIB  # It may be that 4 GiB of it are what is taken on the far node.


@pytest.mark.parametrize(
    ("configured", "expected"), [(None, {2}), ((), set()), ((0,), {0}), ((7,), set()), ((0, 2), set())]
)
def test_far_nodes_are_those_without_cpus_or_as_configured_but_never_all(
    configured: tuple[int, ...] | None, expected: set[int]
) -> None:
    assert far_ids(far_machine(32 * GIB, 0), configured) == expected


@pytest.mark.parametrize("configured", [None, (2,), (0,)])
def test_a_node_whose_memory_was_taken_off_is_neither_far_nor_left_as_the_only_near_one(
    configured: tuple[int, ...] | None,
) -> None:
    machine = far_machine(0, 0)
    near, far = machine.numa
    emptied = msgspec.structs.replace(machine, numa=(near, msgspec.structs.replace(far, total=0)))
    assert far_ids(emptied, configured) == frozenset()


def test_safety_holds_reserves_once_the_eviction_threshold_and_the_margin() -> None:
    reserves = KubeletReserves(
        capacity=64 * GIB,
        allocatable=60 * GIB,
        kube_reserved=GIB,
        system_reserved=2 * GIB,
        eviction_hard=GIB,
    )
    safety = safety_of(reserves, 0, 64 * GIB, system=2 * GIB, share=0.1)
    assert safety.eviction == GIB
    assert safety.unfilled == GIB  # 3 GiB reserved, of which the system uses 2.
    assert safety.margin == int(6.4 * GIB)
    assert safety.total == safety.eviction + safety.unfilled + safety.margin


def test_a_system_that_uses_more_than_its_reserves_leaves_nothing_to_keep_for_it() -> None:
    reserves = KubeletReserves(capacity=64 * GIB, allocatable=62 * GIB, eviction_hard=GIB)
    assert safety_of(reserves, 0, 64 * GIB, system=5 * GIB, share=0.0).total == GIB


def test_huge_pages_are_reserved_and_in_use_and_so_counted_once() -> None:
    machine = node(10 * GIB, hugepages=8 * GIB)
    usage = measure(machine, [], [], NONE, NO_FAR, VIEWS)
    reserves = KubeletReserves(capacity=64 * GIB, allocatable=55 * GIB, eviction_hard=GIB)
    assert safety_of(reserves, machine.hugepages, 64 * GIB, usage.system, share=0.0).unfilled == 0


def test_the_soft_threshold_counts_where_it_is_the_larger() -> None:
    reserves = KubeletReserves(eviction_hard=GIB, eviction_soft=2 * GIB)
    assert safety_of(reserves, 0, 64 * GIB, system=GIB, share=0.0).eviction == 2 * GIB


def test_without_a_word_from_the_kubelet_its_defaults_are_kept_and_said_to_be() -> None:
    safety = safety_of(KubeletReserves(), 0, 64 * GIB, system=0, share=0.0)
    assert safety.total == DEFAULT_EVICTION == 100 * MIB
    assert "because the agent could not ask it" in safety.reasons[0]
    assert "allocatable is unknown" in safety.reasons[1]


def test_an_unknown_threshold_may_be_all_that_the_kubelet_keeps_whatever_the_system_uses() -> None:
    kept = KubeletReserves(capacity=64 * GIB, allocatable=52 * GIB)
    safety = safety_of(kept, 2 * GIB, 64 * GIB, system=12 * GIB, share=0.0)
    assert (safety.eviction, safety.unfilled) == (10 * GIB, 0)
    assert safety.reasons[0].startswith(
        "The kubelet evicts below 10 GiB available or less: the agent could not ask it"
    )


def test_a_kubelet_that_was_asked_and_named_no_threshold_has_none_but_its_default() -> None:
    told = KubeletReserves(capacity=64 * GIB, allocatable=60 * GIB, kube_reserved=4 * GIB)
    assert safety_of(told, 0, 64 * GIB, system=4 * GIB, share=0.0).total == DEFAULT_EVICTION


def test_an_allocatable_that_is_all_of_the_capacity_is_not_called_unknown() -> None:
    whole = KubeletReserves(capacity=64 * GIB, allocatable=64 * GIB)
    said = safety_of(whole, 0, 64 * GIB, system=0, share=0.0).reasons[1]
    assert "unknown" not in said
    assert "the node's allocatable is all of its capacity" in said
    unheard = KubeletReserves(kube_reserved=GIB)
    assert "allocatable is unknown" in safety_of(unheard, 0, 64 * GIB, system=0, share=0.0).reasons[1]


@pytest.mark.parametrize(
    ("reserve", "system", "said"),
    [
        (0, 3, "That is the eviction threshold alone, so nothing more is kept for the system."),
        (4, 1, "The system uses 1 GiB of its reserve of 4 GiB, so 3 GiB more is kept for it."),
        (4, 4, "The system uses 4 GiB, all of its reserve, so nothing more is kept for it."),
        (4, 5, "The system already uses 5 GiB, more than its reserve, so nothing more is kept for it."),
    ],
)
def test_what_is_kept_for_the_system_is_said_with_its_figures(reserve: int, system: int, said: str) -> None:
    reserves = KubeletReserves(kube_reserved=reserve * GIB, eviction_hard=GIB)
    safety = safety_of(reserves, 0, 64 * GIB, system * GIB, share=0.0)
    assert safety.reasons[1].endswith(said)
    assert safety.unfilled == max(0, reserve - system) * GIB
