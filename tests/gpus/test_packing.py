"""Which GPU of which node: what each policy prefers, and that quick answers are the same as slow ones."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.gpus.packing import (
    Fleet,
    GpuState,
    LearnedMix,
    NodeState,
    Packer,
    PackingPolicy,
    PackRequest,
    kinds_of,
    mix_of,
    suits,
)

SIZE = 1000
HALF = PackRequest(1000, 10, 1, 500)
WHOLE = PackRequest(8000, 10, 1, 1000)


def node(name: str, *free: int, cpu: int = 64_000, memory: int = 1000, model: str = "T4") -> NodeState:
    gpus = tuple(GpuState(SIZE, memory_free, model=model) for memory_free in free)
    return NodeState(name=name, cpu=64_000, memory=1000, free_cpu=cpu, free_memory=memory, gpus=gpus)


def choice(
    policy: PackingPolicy, nodes: list[NodeState], pod: PackRequest, expected: dict[PackRequest, int]
) -> tuple[str, tuple[int, ...]] | None:
    fleet = Fleet(nodes)
    ranking = Packer(fleet, policy, mix_of(expected)).rank(pod)
    row = ranking.best()
    return None if row is None else (fleet.names[row], ranking.chosen(row))


def test_best_fit_takes_the_node_and_the_gpu_with_the_least_left() -> None:
    nodes = [node("empty", 1000, 1000), node("used", 600, 500)]
    assert choice(PackingPolicy.BEST_FIT, nodes, HALF, {}) == ("used", (1,))


def test_spread_takes_those_with_the_most() -> None:
    nodes = [node("used", 600, 500), node("empty", 900, 1000)]
    assert choice(PackingPolicy.SPREAD, nodes, HALF, {}) == ("empty", (1,))


def test_fgd_keeps_whole_gpus_for_those_who_need_them() -> None:
    nodes = [node("whole", 1000, cpu=8000), node("part", 700)]
    expected = {WHOLE: 9, HALF: 1}
    assert choice(PackingPolicy.FGD, nodes, HALF, expected) == ("part", (0,))


def test_ours_keeps_cpus_for_gpus_that_would_be_stranded_and_fgd_does_not() -> None:
    """A pod without a GPU: by best fit and by fgd it takes the CPUs of the last GPU but one."""
    work = PackRequest(8000, 10)
    nodes = [node("scarce", 1000, 1000, cpu=16_000), node("plenty", 1000, 1000, cpu=64_000)]
    assert choice(PackingPolicy.FGD, nodes, work, {WHOLE: 1}) == ("scarce", ())
    assert choice(PackingPolicy.OURS, nodes, work, {WHOLE: 1}) == ("plenty", ())


def test_ours_puts_two_that_fill_a_gpu_together() -> None:
    small = PackRequest(1000, 10, 1, 320)
    nodes = [node("a", 330), node("b", 500), node("c", 1000)]
    assert choice(PackingPolicy.OURS, nodes, small, {HALF: 5, small: 5, WHOLE: 5}) == ("a", (0,))


@pytest.mark.parametrize("policy", PackingPolicy)
def test_a_pod_goes_only_where_all_that_it_asks_for_is_free(policy: PackingPolicy) -> None:
    few_cpus, few_gpus = node("few-cpus", 1000, 1000, cpu=500), node("few-gpus", 1000, 999)
    pair = PackRequest(1000, 10, 2, 1000)
    assert choice(policy, [few_cpus, few_gpus], pair, {pair: 1}) is None
    assert choice(policy, [few_cpus, few_gpus, node("enough", 0, 1000, 1000)], pair, {pair: 1}) == (
        "enough",
        (1, 2),
    )


@pytest.mark.parametrize("policy", PackingPolicy)
def test_cores_count_beside_memory(policy: PackingPolicy) -> None:
    busy = NodeState(
        name="busy", cpu=8000, memory=100, free_cpu=8000, free_memory=100, gpus=(GpuState(1000, 900, 20),)
    )
    pod = PackRequest(1000, 10, 1, 100, 30)
    assert choice(policy, [busy], pod, {pod: 1}) is None
    assert choice(policy, [busy], PackRequest(1000, 10, 1, 100, 20), {pod: 1}) == ("busy", (0,))


@pytest.mark.parametrize("policy", PackingPolicy)
def test_a_pod_that_wants_a_model_gets_it(policy: PackingPolicy) -> None:
    nodes = [node("t4", 1000), node("v100", 1000, model="Tesla V100-SXM2-16GB")]
    picky = PackRequest(1000, 10, 1, 500, 0, ("v100", "A100"))
    assert choice(policy, nodes, picky, {picky: 1, HALF: 1}) == ("v100", (0,))


@pytest.mark.parametrize(
    ("model", "words", "is_so"),
    [
        ("NVIDIA A100-SXM4-40GB", ("A10",), False),
        ("NVIDIA A100-SXM4-40GB", ("a100",), True),
        ("NVIDIA A100-SXM4-40GB", ("a100-sxm4",), True),
        ("NVIDIA A100-SXM4-40GB", ("T4", "A100"), True),
        ("T4", (), True),
        ("", ("T4",), False),
    ],
)
def test_a_model_is_named_by_whole_words(model: str, words: tuple[str, ...], is_so: bool) -> None:
    assert suits(model, words) is is_so


TWO = PackRequest(1000, 10, 2, 400)


def mixed(*gpus: tuple[str, int]) -> NodeState:
    states = tuple(GpuState(SIZE, free, model=model) for model, free in gpus)
    return NodeState(name="n", cpu=64_000, memory=1000, free_cpu=64_000, free_memory=1000, gpus=states)


@pytest.mark.parametrize("policy", PackingPolicy)
def test_several_gpus_are_of_one_model_where_there_are_enough(policy: PackingPolicy) -> None:
    """By their free memory alone, the first and the third would be taken, or the two emptiest."""
    node = mixed(("T4", 400), ("T4", 900), ("A100", 500), ("A100", 1000))
    found = choice(policy, [node], TWO, {TWO: 1, HALF: 1})
    assert found is not None
    assert found[1] in ((0, 1), (2, 3))


def test_of_two_models_the_fuller_gpus_are_taken() -> None:
    node = mixed(("T4", 900), ("A100", 500), ("T4", 400), ("A100", 600))
    assert choice(PackingPolicy.BEST_FIT, [node], TWO, {}) == ("n", (1, 3))
    assert choice(PackingPolicy.SPREAD, [node], TWO, {}) == ("n", (0, 2))


def test_models_mix_where_no_other_place_is_left() -> None:
    node = mixed(("T4", 900), ("T4", 100), ("A100", 500))
    assert choice(PackingPolicy.OURS, [node], TWO, {TWO: 1}) == ("n", (0, 2))
    restricted = PackRequest(1000, 10, 2, 400, 0, ("A100",))
    assert choice(PackingPolicy.OURS, [node], restricted, {TWO: 1}) is None


def test_a_node_that_leaves_takes_no_pod_and_its_row_is_used_again() -> None:
    fleet = Fleet([node("a", 1000), node("b", 400)])
    packer = Packer(fleet, PackingPolicy.BEST_FIT)
    assert packer.rank(HALF).best() == fleet.rows["a"]
    fleet.remove("a")
    assert packer.rank(HALF).best() is None
    fleet.put(node("c", 1000, 1000))
    ranking = packer.rank(HALF)
    row = ranking.best()
    assert row is not None
    assert fleet.names[row] == "c"
    assert np.isinf(packer.scores(ranking, ["a", "b"])).all()
    assert fleet.total() == 3


def test_a_fleet_grows_with_its_nodes() -> None:
    fleet = Fleet(node(f"n{number}", *[1000] * (1 + number % 12)) for number in range(200))
    assert fleet.total() == sum(1 + number % 12 for number in range(200))
    assert fleet.unallocated() == pytest.approx(fleet.total())


def test_the_popular_kinds_are_expected_and_the_rare_ones_not() -> None:
    rare = PackRequest(1, 1, 1, 7)
    mix = mix_of({HALF: 60, WHOLE: 36, rare: 4})
    assert mix.kinds == [HALF, WHOLE]
    assert mix.weights.tolist() == [60 / 96, 36 / 96]


def test_what_comes_is_learned_and_made_up_kinds_are_forgotten() -> None:
    mix = LearnedMix()
    assert not any(mix.see(HALF) for _ in range(19))
    assert mix.see(HALF)
    assert mix.latest.kinds == [HALF]
    for number in range(10_000):
        mix.see(PackRequest(number, 0, 1, 1 + number))
    assert len(mix._counts) <= mix._MOST_COUNTED


free_gpus = st.lists(st.integers(0, 10).map(lambda tenths: tenths * 100), min_size=1, max_size=4)
states = st.builds(
    lambda free, cpu, memory: (free, cpu * 1000, memory),
    free_gpus,
    st.integers(0, 16),
    st.integers(0, 30),
)
requests = st.builds(
    lambda cpu, memory, gpus, share: PackRequest(cpu * 1000, memory, gpus, share * 100 if gpus else 0),
    st.integers(0, 8),
    st.integers(0, 10),
    st.integers(0, 2),
    st.integers(1, 10),
)


def stranded(free: list[int], cpu: int, memory: int, expected: dict[PackRequest, int]) -> Fraction:
    """What `ours` says of a node, as its description has it, in plain fractions."""
    lost = Fraction(0)
    for kind, count in expected.items():
        total = Fraction(sum(free), SIZE)
        pieces = sum(one // kind.gpu_memory for one in free) if kind.gpus else 0
        pods = [Fraction(pieces, kind.gpus)] if kind.gpus else [Fraction(0)]
        pods += [Fraction(cpu, kind.cpu)] if kind.cpu else []
        pods += [Fraction(memory, kind.memory)] if kind.memory else []
        usable = min(pods) * kind.gpus * Fraction(kind.gpu_memory, SIZE) if min(pods) >= 1 else 0
        lost += Fraction(count, sum(expected.values())) * (total - usable)
        if kind.gpus == 1 and kind.gpu_memory < SIZE:
            fits = cpu >= kind.cpu and memory >= kind.memory
            now = Fraction(sum(one for one in free if one >= kind.gpu_memory), SIZE) if fits else 0
            lost += Fraction(count, sum(expected.values())) * (total - now)
    return lost


@given(
    st.lists(states, min_size=1, max_size=5),
    requests,
    st.dictionaries(requests, st.integers(1, 9), min_size=1, max_size=4),
)
def test_ours_takes_the_place_where_least_becomes_stranded(
    nodes: list[tuple[list[int], int, int]], pod: PackRequest, expected: dict[PackRequest, int]
) -> None:
    mix = {
        kind: count
        for kind, count in expected.items()
        if kind in mix_of(expected, 1.0).kinds or not kind.gpus
    }
    fleet = Fleet(
        node(f"n{number}", *free, cpu=cpu, memory=memory) for number, (free, cpu, memory) in enumerate(nodes)
    )
    ranking = Packer(fleet, PackingPolicy.OURS, mix_of(expected, 1.0)).rank(pod)
    growths: dict[int, Fraction] = {}
    for number, (free, cpu, memory) in enumerate(nodes):
        if cpu < pod.cpu or memory < pod.memory:
            continue
        before = stranded(free, cpu, memory, mix)
        able = sorted((one, place) for place, one in enumerate(free) if one >= pod.gpu_memory)
        if len(able) < pod.gpus:
            continue
        ways = [[place] for _, place in able] if pod.gpus == 1 else [[place for _, place in able[: pod.gpus]]]
        for taken in ways:
            after = [one - pod.gpu_memory * (place in taken) for place, one in enumerate(free)]
            grown = stranded(after, cpu - pod.cpu, memory - pod.memory, mix) - before
            growths[number] = min(grown, growths.get(number, grown))
    fits = {int(row) for row in np.nonzero(np.isfinite(ranking.scores))[0]}
    assert fits == set(growths)
    for number, grown in growths.items():
        assert ranking.scores[number] == pytest.approx(float(grown), abs=1e-5)


@given(
    st.sampled_from(PackingPolicy),
    st.lists(states, min_size=2, max_size=4),
    st.lists(requests, min_size=1, max_size=12),
)
def test_what_is_remembered_is_what_would_be_worked_out_anew(
    policy: PackingPolicy, nodes: list[tuple[list[int], int, int]], pods: list[PackRequest]
) -> None:
    fleet = Fleet(
        node(f"n{number}", *free, cpu=cpu, memory=memory) for number, (free, cpu, memory) in enumerate(nodes)
    )
    mix = mix_of(kinds_of(pods))
    packer = Packer(fleet, policy, mix)
    for pod in pods:
        remembered, anew = packer.rank(pod), Packer(fleet, policy, mix).rank(pod)
        assert remembered.scores == pytest.approx(anew.scores)
        row = remembered.best()
        if row is not None:
            fleet.take(row, pod, remembered.gpus[row])
            assert (fleet.gpu_memory[row][fleet.size[row] > 0] >= 0).all()
            assert fleet.cpu[row] >= 0
