"""Heat levels: reluctant to change, never leaving the coolest level to a few; and few writes at a time."""

import random
from collections import Counter

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from colocate.load.decision import decide
from colocate.load.heat import (
    Heat,
    HeatSettings,
    heats,
    held,
    own_level,
    plan_taints,
    pressures,
    rounded_down,
)
from colocate.load.settings import LoadSettings, MissingScore, Staleness
from colocate.load.table import LoadTable
from colocate.model.load import Access, BoundPod, NodeLoad, Taint, Usage
from tests.load.facts import NOW, load, node, pod, table

SETTINGS = HeatSettings()
ALONE = HeatSettings(cool_percent=0, cool_nodes=1)


@pytest.mark.parametrize(
    ("pressure", "level"), [(0, 0), (59.9, 0), (60, 1), (79, 2), (80, 3), (90, 4), (100, 4)]
)
def test_levels_rise_at_their_steps(pressure: float, level: int) -> None:
    assert own_level(pressure, None, SETTINGS) == level


def test_a_level_is_left_only_well_below_its_step() -> None:
    assert own_level(66, 2, SETTINGS) == 2
    assert own_level(64.9, 2, SETTINGS) == 1
    assert own_level(20, 4, SETTINGS) == 0
    assert own_level(95, 0, SETTINGS) == 4


@given(
    base=st.floats(0, 100),
    noise=st.lists(st.floats(-2.49, 2.49), min_size=1, max_size=50),
    before=st.none() | st.integers(0, 4),
)
def test_noise_smaller_than_the_hysteresis_makes_no_level_oscillate(
    base: float, noise: list[float], before: int | None
) -> None:
    level, changes, levels = before, [], []
    for each in noise:
        after = own_level(base + each, level, SETTINGS)
        changes.append(0 if level is None else (after > level) - (after < level))
        level = after
        levels.append(after)
    moved = [change for change in changes[1:] if change]
    assert len(moved) <= 1, f"it went {levels}"


@given(
    bases=st.lists(st.floats(0, 100), min_size=1, max_size=12),
    noise=st.lists(st.lists(st.floats(-2.49, 2.49), min_size=12, max_size=12), min_size=1, max_size=20),
)
def test_noise_makes_no_node_of_a_cluster_oscillate(bases: list[float], noise: list[list[float]]) -> None:
    before: dict[str, Heat] = {}
    shown: dict[str, list[int]] = {f"n-{i}": [] for i in range(len(bases))}
    for each in noise:
        now = {f"n-{i}": base + more for i, (base, more) in enumerate(zip(bases, each, strict=False))}
        before = heats(now, before, SETTINGS)
        for name, heat in before.items():
            shown[name].append(heat.level)
    for levels in shown.values():
        assert levels in (sorted(levels), sorted(levels, reverse=True)), "only ever up, or only ever down"


@given(pressure=st.floats(0, 100), more=st.floats(0, 100), before=st.none() | st.integers(0, 4))
def test_more_pressure_is_never_a_lower_level(pressure: float, more: float, before: int | None) -> None:
    assert own_level(pressure + more, before, SETTINGS) >= own_level(pressure, before, SETTINGS)


@given(pressure=st.floats(0, 100), digits=st.integers(0, 1))
@example(pressure=89.999998, digits=1)
def test_a_pressure_is_shown_at_no_step_that_it_has_not_reached(pressure: float, digits: int) -> None:
    shown = rounded_down(pressure, digits)
    assert own_level(shown, None, SETTINGS) == own_level(pressure, None, SETTINGS)
    assert 0 <= pressure - shown < 1.01 / 10**digits


def test_the_lowest_level_is_shared_by_enough_nodes() -> None:
    one_cool = {"cool": 10.0, **{f"hot-{i}": 65.0 for i in range(19)}}
    assert {heat.level for heat in heats(one_cool, {}, SETTINGS).values()} == {1}
    several = {**{f"cool-{i}": 10.0 for i in range(3)}, **{f"hot-{i}": 65.0 for i in range(17)}}
    assert Counter(heat.level for heat in heats(several, {}, SETTINGS).values()) == {0: 3, 1: 17}
    assert heats(one_cool, {}, ALONE)["cool"].level == 0


CONTROL_PLANE = Access(taints=(Taint("node-role.kubernetes.io/control-plane", "NoSchedule"),))
NOT_READY = Access(taints=(Taint("node.kubernetes.io/not-ready", "NoExecute"),))
GPU = Access(taints=(Taint("gpu", "NoSchedule"),))
CORDONED = Access(cordoned=True)


@pytest.mark.parametrize("access", [CONTROL_PLANE, NOT_READY, CORDONED])
def test_nodes_that_no_pod_can_use_are_none_of_the_cool_ones(access: Access) -> None:
    idle = [f"idle-{i}" for i in range(3)]
    nodes = dict.fromkeys(idle, 20.0) | {"cool": 50.0} | {f"n-{i}": 72.0 for i in range(12)}
    assert heats(nodes, {}, SETTINGS)["cool"].level == 0
    found = heats(nodes, {}, SETTINGS, access=dict.fromkeys(idle, access))
    assert found["cool"].level == 2


def test_a_node_that_is_open_again_is_not_alone_at_the_lowest_level() -> None:
    nodes = {"cordoned": 20.0} | {f"n-{i}": 72.0 for i in range(12)}
    assert heats(nodes, {}, SETTINGS, access={"cordoned": CORDONED})["cordoned"].level == 2
    alone = {"master": 20.0} | {f"n-{i}": 72.0 for i in range(12)}
    assert heats(alone, {}, SETTINGS, access={"master": CONTROL_PLANE})["master"].level == 0


def test_nodes_of_one_pool_share_the_lowest_level_among_themselves() -> None:
    gpu = [f"gpu-{i}" for i in range(8)]
    nodes = dict.fromkeys(gpu, 72.0) | {"gpu-0": 20.0} | {f"n-{i}": 20.0 for i in range(12)}
    found = heats(nodes, {}, SETTINGS, access=dict.fromkeys(gpu, GPU))
    assert {found[name].level for name in gpu} == {2}
    assert {found[f"n-{i}"].level for i in range(12)} == {0}


def test_another_effect_of_a_taint_makes_no_other_pool() -> None:
    both = Access(taints=(Taint("gpu", "NoExecute"), Taint("gpu", "NoSchedule")))
    nodes = dict.fromkeys([f"gpu-{i}" for i in range(12)], 72.0) | {"gpu-0": 50.0}
    found = heats(nodes, {}, SETTINGS, access=dict.fromkeys(nodes, GPU) | {"gpu-0": both})
    assert {heat.level for heat in found.values()} == {2}
    assert not both.closed
    closed = Access(taints=(*both.taints, *NOT_READY.taints))
    assert closed.closed
    assert closed.pool == GPU.pool


def test_of_few_nodes_the_hot_one_shows_it() -> None:
    for others in (1, 2, 3):
        nodes = {"hot": 95.0, **{f"cool-{i}": 20.0 for i in range(others)}}
        found = heats(nodes, {}, SETTINGS)
        assert found["hot"].level == 4
        assert found["cool-0"].level == 0


@pytest.mark.parametrize(
    ("cool", "hot"), [(2, 8), (9, 91), (1, 3), (1, 1), (2, 18)], ids=lambda number: str(number)
)
def test_however_few_are_cool_hot_nodes_are_hotter(cool: int, hot: int) -> None:
    nodes = {f"cool-{i}": 20.0 for i in range(cool)} | {f"hot-{i}": 95.0 for i in range(hot)}
    found = heats(nodes, {}, SETTINGS)
    assert max(heat.level for name, heat in found.items() if name.startswith("cool")) < 4
    assert {heat.level for name, heat in found.items() if name.startswith("hot")} == {4}


def test_three_nodes_from_cool_to_hot_are_told_apart() -> None:
    found = heats({"cool": 30.0, "hot": 85.0, "hotter": 95.0}, {}, SETTINGS)
    assert found["cool"].level < found["hot"].level < found["hotter"].level


def test_a_cluster_that_is_hot_everywhere_is_spread_over_and_not_refused() -> None:
    found = heats({f"n-{i}": 95.0 for i in range(5)}, {}, SETTINGS)
    assert {heat.level for heat in found.values()} == {4}


def test_heat_is_that_of_the_more_loaded_resource() -> None:
    made = table({"n": load(3, 92)})
    assert pressures(made)["n"] == pytest.approx(92)
    assert heats(pressures(made), {}, ALONE)["n"].level == 4


def test_pressure_comes_from_the_table_with_its_ledger() -> None:
    made = table({"a": load(40, 40), "b": load(40, 40)})
    before = pressures(made)["a"]
    for number in range(20):
        made.bind(BoundPod(pod(f"p-{number}"), "a", NOW))
    assert pressures(made)["a"] == pytest.approx(before + 20)
    assert pressures(made)["b"] == before


def test_a_node_that_is_measured_no_more_does_not_become_cooler_for_a_while() -> None:
    made = table({"hot": load(10, 95), "cool": load(10, 20), "other": load(10, 20)})
    before = heats(pressures(made), {}, SETTINGS)
    for age, level in ((181, 4), (3599, 4), (3600, 0)):
        made.advance(NOW + age)
        found = heats(pressures(made), before, SETTINGS, held(made, NOW, SETTINGS))
        assert (found["hot"].level, found["cool"].level) == (level, 0), age


def test_it_is_held_too_when_only_the_samples_of_one_resource_stop() -> None:
    made = table({"hot": load(10, 95), "cool": load(10, 20), "other": load(10, 20)})
    before = heats(pressures(made), {}, SETTINGS)
    stopped = {
        name: NodeLoad(Usage(10, NOW + 300), Usage(95 if name == "hot" else 20, NOW)) for name in made.nodes
    }
    made.observe(stopped, NOW + 300)
    assert held(made, NOW, SETTINGS) == set(made.nodes)
    assert heats(pressures(made), before, SETTINGS, held(made, NOW, SETTINGS))["hot"].level == 4


def with_new(hot: int, new: int, age: float, missing: MissingScore = MissingScore.NEUTRAL) -> LoadTable:
    """Hot nodes, and some that were made lately and never had a sample."""
    loads = {f"n-{i}": load(10, 95) for i in range(hot)} | {f"new-{i}": NodeLoad() for i in range(new)}
    made = table(loads, LoadSettings(staleness=Staleness(score=missing)))
    made.add_nodes(msgspec.structs.replace(node(f"new-{i}"), created=NOW - age) for i in range(new))
    return made


@pytest.mark.parametrize("missing", list(MissingScore))
def test_a_new_node_is_cool_before_its_first_sample_and_after_a_while_like_the_others(
    missing: MissingScore,
) -> None:
    for age, level in ((0, 0), (299, 0), (300, 4), (-60, 0)):
        made = with_new(3, 1, age, missing)
        assert heats(pressures(made), {}, ALONE)["new-0"].level == level, age


def test_a_new_node_becomes_hot_by_the_pods_that_go_there() -> None:
    made = with_new(8, 2, 0)
    placed = burst(made, SETTINGS, react=10)
    assert set(placed) == {"new-0", "new-1"}
    assert max(placed.values()) <= 1.3 * 100


def test_a_node_that_has_been_measured_is_new_no_more() -> None:
    made = with_new(3, 1, 0)
    made.observe({"new-0": load(10, 20, at=NOW - 200)}, NOW)
    assert pressures(made)["new-0"] > 90, "its sample has expired: it is supposed to be like the others"


def test_a_node_without_samples_may_still_be_found_hotter() -> None:
    made = table({"a": load(10, 95), "b": load(10, 95), "c": load(10, 20, at=NOW - 200)})
    before = {"c": heat(0, 20)}
    assert held(made, NOW, SETTINGS) == {"c"}
    assert heats(pressures(made), before, ALONE, held(made, NOW, SETTINGS))["c"].own == 4


def test_what_a_node_shows_from_before_the_start_is_held_until_it_is_sampled() -> None:
    made = table({"a": load(10, 20), "b": load(10, 20), "shows": NodeLoad()})
    before = {"shows": heat(4, 95)}
    assert heats(pressures(made), before, SETTINGS, held(made, NOW, SETTINGS))["shows"].level == 4
    assert held(made, NOW - 3600, SETTINGS) == set()


# --- writes --------------------------------------------------------------------------------------------


def heat(level: int, pressure: float) -> Heat:
    return Heat(pressure, level, level)


def test_hotter_nodes_are_written_first_and_the_rest_waits() -> None:
    wanted = {
        "up": heat(1, 61),
        "up2": heat(3, 85),
        "down": heat(0, 10),
        "same": heat(2, 75),
        "up3": heat(1, 66),
    }
    shown = {"down": 4, "same": 2}
    found = plan_taints(shown, wanted, [], NOW, per_minute=3)
    assert [change.node for change in found.changes] == ["up2", "up3", "up"]
    assert found.waiting == 1
    assert str(found.changes[0]) == "up2: heat 0 → 3 at 85 %"
    assert str(plan_taints({}, {"a": heat(3, 89.999998)}, [], NOW, 1).changes[0]) == "a: heat 0 → 3 at 89 %"


def test_writes_of_the_last_minute_count() -> None:
    wanted = {f"n-{i}": heat(1, 60 + i) for i in range(10)}
    assert len(plan_taints({}, wanted, [NOW - 61, NOW - 59, NOW - 1], NOW, per_minute=5).changes) == 3
    assert plan_taints({}, wanted, [NOW] * 9, NOW, per_minute=5).changes == ()


def test_what_is_as_it_should_be_is_not_written() -> None:
    assert plan_taints({"a": 1}, {"a": heat(1, 60), "b": heat(0, 0)}, [], NOW, per_minute=5).changes == ()


# --- the herd ------------------------------------------------------------------------------------------


def burst(made: LoadTable, settings: HeatSettings, *, react: int, per_minute: int = 30) -> Counter[str]:
    """200 pods by a stock scheduler, which takes any node with the fewest taints and, among those, one with the
    fewest pods; taints are written after every `react` pods."""
    chance = random.Random(1)
    names = list(made.nodes)
    before: dict[str, Heat] = {}
    shown = dict.fromkeys(names, 0)
    written: list[float] = []
    placed: Counter[str] = Counter()
    for number in range(200):
        now = NOW + number * 0.1
        if number % react == 0:
            before = heats(pressures(made), before, settings)
            for change in plan_taints(shown, before, written, now, per_minute).changes:
                shown[change.node] = change.after
                written.append(now)
        fewest = min((shown[name], placed[name]) for name in names)
        chosen = chance.choice([name for name in names if (shown[name], placed[name]) == fewest])
        placed[chosen] += 1
        made.bind(BoundPod(pod(f"p-{number}"), chosen, now))
    return placed


def test_the_herd_on_idle_nodes_is_bounded() -> None:
    made = table({f"n-{i:02}": load(3, 5) for i in range(20)})
    assert max(burst(made, SETTINGS, react=10).values()) <= 1.3 * 10


def test_one_cool_node_among_warm_ones_does_not_get_everything() -> None:
    loads = {f"n-{i:02}": load(65, 65) if i else load(10, 10) for i in range(20)}
    alone = burst(table(loads), ALONE, react=10)["n-00"]
    shared = burst(table(loads), SETTINGS, react=10)["n-00"]
    assert alone >= 40, "steps alone are coarse: the cool node fills up to the first of them"
    assert shared <= 20


def test_a_hot_node_gets_nothing_in_this_mode_either() -> None:
    made = table({f"n-{i:02}": load(3, 90 if i == 0 else 5) for i in range(20)})
    assert burst(made, SETTINGS, react=1)["n-00"] == 0


def test_two_fresh_nodes_take_a_burst_before_eight_hot_ones_do() -> None:
    loads = {f"n-{i:02}": load(10, 20) if i < 2 else load(10, 95) for i in range(10)}
    placed = burst(table(loads), SETTINGS, react=10)
    assert {name for name in placed if loads[name].memory == load(10, 95).memory} == set()
    assert max(placed.values()) <= 1.3 * 100


@pytest.mark.parametrize("steps", [(), (60, 60), (70, 60), (1, 2, 3, 4, 5)])
def test_steps_that_make_no_sense_are_refused(steps: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must be one to four rising percentages"):
        HeatSettings(steps=steps)


def test_a_hysteresis_greater_than_a_step_is_refused() -> None:
    with pytest.raises(ValueError, match="hysteresis of 11"):
        HeatSettings(hysteresis=11)


@given(
    asked=st.lists(st.tuples(st.integers(0, 8000), st.integers(0, 32 << 30)), min_size=1, max_size=20),
    used=st.floats(0, 95),
)
@example(asked=[(0, 0)], used=95)
def test_pods_that_somebody_made_up_and_that_are_never_bound_heat_no_node(
    asked: list[tuple[int, int]], used: float
) -> None:
    made = table({"a": load(used, used), "b": load(96, 96)})
    made.bind(BoundPod(pod("real", 500, 1 << 30), "a", NOW))
    before = pressures(made)
    for number, (cpu, memory) in enumerate(asked):
        decide(made, pod(f"phantom-{number}", cpu, memory), ["a", "b"], NOW)
    unseen = sum(made.terms(name).unseen_pods for name in ("a", "b"))
    assert unseen == pytest.approx(1 + len(asked)), "scores take them into account, wherever each would go"
    assert pressures(made) == before


def test_a_pod_that_is_bound_heats_its_node_from_then_on() -> None:
    made = table({"a": load(50, 50), "b": load(60, 60)})
    asked = pod("p", 4000, 16 << 30)
    cold = pressures(made)
    decide(made, asked, ["a", "b"], NOW)
    assert pressures(made) == cold
    made.bind(BoundPod(asked, "a", NOW))
    assert pressures(made)["a"] > cold["a"] + 20
