"""What a pod with blocks may use."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.memory.limits import kubelets_own, limits_of, set_aside
from colocate.model.memory import ContainerMemory, PodIdentity
from tests.memory.nodes import GIB, MIB

SIZE = 512 * MIB


def pod(*containers: ContainerMemory) -> PodIdentity:
    return PodIdentity(uid="u", namespace="n", name="p", containers=containers)


def main(blocks: int = 3, limit: int | None = None, request: int | None = None) -> ContainerMemory:
    return ContainerMemory(name="main", blocks=blocks, limit=limit, request=request)


def test_three_blocks_are_1_610_612_736_bytes() -> None:
    found = limits_of(pod(main()), SIZE)
    assert found is not None
    assert found.pod == 1_610_612_736
    assert found.swap == 0


def test_a_pod_without_blocks_is_none_of_our_business() -> None:
    assert limits_of(pod(ContainerMemory(name="db", limit=GIB)), SIZE) is None


def test_limits_of_the_other_containers_come_on_top() -> None:
    found = limits_of(pod(main(), ContainerMemory(name="logs", limit=256 * MIB)), SIZE)
    assert found is not None
    assert found.pod == 3 * SIZE + 256 * MIB


def test_a_container_without_a_limit_is_not_killed_by_the_pods() -> None:
    found = limits_of(pod(main(), ContainerMemory(name="logs")), SIZE)
    assert found is not None
    assert found.pod is None
    assert found.containers == {"main": 3 * SIZE}
    assert found.swap is None, "its swap would be taken away, too"
    assert "logs has no memory limit" in found.reasons[0]


def test_a_limit_of_0_is_no_limit_and_no_container_is_held_to_it() -> None:
    sidecar = ContainerMemory(name="logs", limit=0)
    found = limits_of(pod(main(limit=0), sidecar), SIZE)
    assert found is not None
    assert (found.pod, found.containers) == (None, {"main": 3 * SIZE})
    assert kubelets_own(pod(main(limit=0), sidecar)) is None
    assert kubelets_own(pod(main(limit=GIB), sidecar)) is None


def test_a_container_that_has_a_limit_is_not_given_another() -> None:
    found = limits_of(pod(main(limit=GIB), ContainerMemory(name="logs")), SIZE)
    assert found is not None
    assert found.containers == {}


@pytest.mark.parametrize(
    ("container", "allowed"),
    [
        (main(limit=4 * GIB), 4 * GIB),
        (main(limit=GIB), 3 * SIZE),
        (main(request=2 * GIB), 2 * GIB + 3 * SIZE),
    ],
)
def test_memory_of_its_own_is_not_taken_away(container: ContainerMemory, allowed: int) -> None:
    found = limits_of(pod(container), SIZE)
    assert found is not None
    assert found.pod == allowed


def test_init_containers_run_one_by_one_and_sidecars_beside() -> None:
    found = limits_of(
        pod(
            ContainerMemory(name="fetch", blocks=4, init=True),
            ContainerMemory(name="proxy", limit=GIB, init=True, sidecar=True),
            main(),
        ),
        SIZE,
    )
    assert found is not None
    assert found.pod == 3 * SIZE + GIB


def test_an_init_container_without_blocks_is_given_its_limit_where_that_is_the_most() -> None:
    fetch = ContainerMemory(name="fetch", limit=4 * GIB, init=True)
    found = limits_of(pod(fetch, main()), SIZE)
    assert found is not None
    assert found.pod == 4 * GIB, "while it runs, no other container does"


def test_an_init_container_without_a_limit_is_not_killed_by_the_pods_not_even_when_it_runs_again() -> None:
    started = msgspec.structs.replace(pod(ContainerMemory(name="fetch", init=True), main()), started=True)
    found = limits_of(started, SIZE)
    assert found is not None
    assert (found.pod, found.containers) == (None, {"main": 3 * SIZE})


def test_a_sidecar_without_a_limit_is_not_killed_by_the_pods() -> None:
    found = limits_of(pod(ContainerMemory(name="proxy", init=True, sidecar=True), main()), SIZE)
    assert found is not None
    assert (found.pod, found.containers) == (None, {"main": 3 * SIZE})


def test_of_blocks_on_top_of_a_pods_own_limit_those_count_that_are_used_together() -> None:
    fetch = ContainerMemory(name="fetch", blocks=4, init=True)
    found = limits_of(msgspec.structs.replace(pod(fetch, main()), limit=GIB), SIZE)
    assert found is not None
    assert found.pod == GIB + 4 * SIZE


def test_a_limit_is_whole_pages_as_the_kernel_stores_it() -> None:
    found = limits_of(pod(main(), ContainerMemory(name="logs", limit=1_000_000_000)), SIZE)
    assert found is not None
    assert found.pod == 3 * SIZE + 999_997_440


def test_a_pods_own_limit_and_its_runtimes_overhead_are_not_taken_away() -> None:
    logs = ContainerMemory(name="logs")
    whole = msgspec.structs.replace(pod(main(), logs), limit=4 * GIB, overhead=160 * MIB)
    found = limits_of(whole, SIZE)
    assert found is not None
    assert (found.pod, found.containers) == (4 * GIB + 3 * SIZE + 160 * MIB, {})
    assert kubelets_own(whole) == 4 * GIB + 160 * MIB


def test_a_runtimes_overhead_comes_on_top() -> None:
    sandboxed = msgspec.structs.replace(pod(main(limit=GIB)), overhead=160 * MIB)
    found = limits_of(sandboxed, SIZE)
    assert found is not None
    assert found.pod == 3 * SIZE + 160 * MIB
    assert kubelets_own(sandboxed) == GIB + 160 * MIB


sizes = st.none() | st.integers(0, 8).map(lambda many: many * 300 * MIB)


containers_ = st.builds(
    lambda blocks, limit, request, kind: ContainerMemory(
        name="any", blocks=blocks, limit=limit, request=request, init=kind > 0, sidecar=kind > 1
    ),
    st.integers(0, 4),
    sizes,
    sizes,
    st.integers(0, 2),
)


@given(
    st.lists(containers_, min_size=1, max_size=5).map(lambda all: sorted(all, key=lambda one: not one.init)),
    sizes,
    st.integers(0, GIB),
)
def test_no_limit_is_below_the_kubelets_own(
    containers: list[ContainerMemory], whole: int | None, overhead: int
) -> None:
    made = msgspec.structs.replace(pod(*containers), limit=whole, overhead=overhead)
    found, own = limits_of(made, SIZE), kubelets_own(made)
    if found is not None and found.pod is not None:
        assert own is None or found.pod >= own
        together = [[each for each in containers if not each.init or each.sidecar]]
        for place, each in enumerate(containers):
            if each.has_ended_by_start:
                together.append([*(one for one in containers[:place] if one.sidecar), each])
        for running in together:
            needed = sum(max(each.limit or 0, each.blocks * SIZE) for each in running)
            assert found.pod > min(needed, whole or needed) + overhead - 4096, (
                "no container is killed within its own"
            )


def test_swap_is_left_alone_where_colocated_pods_may_swap() -> None:
    found = limits_of(pod(main()), SIZE, swap=True)
    assert found is not None
    assert found.swap is None


def test_the_kubelets_own_limit_is_there_only_where_every_container_has_one() -> None:
    assert kubelets_own(pod(main())) is None
    assert kubelets_own(pod(main(limit=GIB), ContainerMemory(name="logs", limit=MIB))) == GIB + MIB


@pytest.mark.parametrize(
    ("containers", "besides"),
    [
        ((main(),), 0),
        ((main(), ContainerMemory(name="db", request=2 * GIB, limit=4 * GIB)), 2 * GIB),
        ((main(), ContainerMemory(name="db", request=2 * GIB)), 2 * GIB),
        ((main(), ContainerMemory(name="db")), 0),
        ((main(request=2 * GIB),), 2 * GIB),
        ((main(limit=3 * SIZE, request=3 * SIZE),), 0),
        ((main(limit=4 * GIB, request=4 * GIB),), 4 * GIB - 3 * SIZE),
        ((main(limit=GIB, request=GIB),), 0),
    ],
)
def test_what_was_set_aside_besides_the_blocks(containers: tuple[ContainerMemory, ...], besides: int) -> None:
    assert set_aside(pod(*containers), SIZE) == besides


def test_what_an_init_container_requested_is_set_aside_while_it_runs() -> None:
    starting = pod(ContainerMemory(name="load", request=8 * GIB, init=True), main())
    assert set_aside(starting, SIZE) == 8 * GIB
    assert set_aside(msgspec.structs.replace(starting, started=True), SIZE) == 0


def test_what_a_pod_requests_as_a_whole_is_set_aside_with_its_overhead() -> None:
    whole = msgspec.structs.replace(pod(main()), whole_request=2 * GIB, limit=4 * GIB, overhead=MIB)
    assert set_aside(whole, SIZE) == 2 * GIB + MIB
