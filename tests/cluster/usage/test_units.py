"""Which values look like ratios where percents are asked for, and which never do."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from colocate.cluster.usage.signals import CPU, MEMORY, Measured, Signal, Statistic, ratios

PEAK = Signal(Measured.MEMORY, Statistic.P95, 3600)
DEVIATION = Signal(Measured.MEMORY, Statistic.DEVIATION, 900)


@pytest.mark.parametrize(
    ("memory", "so"),
    [
        ([0.93, 0.139, 0.131, 0.2], True),
        ([1.0, 1.0], True),
        ([0.9, 0.0], True),
        ([0.93, 1.2], False),
        ([93.0, 13.9], False),
        ([0.0, 0.0, 0.0], False),
        ([0.93], False),
        ([], False),
    ],
)
def test_memory_that_no_machine_can_do_with_is_a_ratio(memory: list[float], so: bool) -> None:
    assert ratios({MEMORY: memory}) == {MEMORY: so}
    assert ratios({PEAK: memory}) == {PEAK: so}


def test_idle_nodes_use_little_cpu_and_are_no_ratio() -> None:
    assert ratios({CPU: [0.1, 0.4, 0.9], MEMORY: [12.0, 3.0, 4.0]}) == {CPU: False, MEMORY: False}


def test_cpu_is_a_ratio_where_memory_is() -> None:
    low, high = [0.1, 0.4], [10.0, 40.0]
    assert ratios({CPU: low, MEMORY: low}) == {CPU: True, MEMORY: True}
    assert ratios({CPU: high, MEMORY: low}) == {CPU: False, MEMORY: True}
    assert ratios({CPU: low}) == {}, "where nothing is known of memory, nothing is"


def test_deviations_are_small_by_nature() -> None:
    assert ratios({DEVIATION: [0.1, 0.2]}) == {}


@given(st.lists(st.floats(0.02, 1), min_size=2, max_size=9))
def test_what_is_a_ratio_is_none_once_it_is_multiplied(values: list[float]) -> None:
    assert ratios({MEMORY: values}) == {MEMORY: True}
    assert ratios({MEMORY: [100 * value for value in values]}) == {MEMORY: False}
