"""Sets of CPUs: lists and masks as the kernel writes them, algebra, and input that is no list."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.sysfs import mask_text

from colocate.model.cpuset import EMPTY, LARGEST_CPU, CpuSet, union

numbers = st.frozensets(st.integers(0, 300) | st.integers(0, LARGEST_CPU), max_size=40)


@given(numbers)
def test_what_is_written_is_read_again(cpus: frozenset[int]) -> None:
    assert set(CpuSet.parse(str(CpuSet.of(cpus)))) == cpus
    assert set(CpuSet.parse_mask(mask_text(CpuSet.of(cpus)))) == cpus
    assert pickle.loads(pickle.dumps(CpuSet.of(cpus))) == CpuSet.of(cpus)


@given(numbers, numbers)
def test_the_algebra_is_that_of_sets(one: frozenset[int], other: frozenset[int]) -> None:
    a, b = CpuSet.of(one), CpuSet.of(other)
    assert set(a | b) == set(union([a, b])) == one | other
    assert set(a & b) == one & other
    assert set(a - b) == one - other
    assert (a <= b) == (one <= other)
    assert a.isdisjoint(b) == one.isdisjoint(other)
    assert (a == b) == (one == other)
    assert len(a) == len(one)
    assert list(a) == sorted(one)
    assert bool(a) == bool(one)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", []),
        ("\n", []),
        ("0", [0]),
        ("0-3,64-67\n", [0, 1, 2, 3, 64, 65, 66, 67]),
        (" 2 , 4 ", [2, 4]),
        ("5,1-2", [1, 2, 5]),
    ],
)
def test_lists_of_the_kernel(text: str, cpus: list[int]) -> None:
    assert list(CpuSet.parse(text)) == cpus


def test_masks_of_the_kernel() -> None:
    assert str(CpuSet.parse_mask("00000000,003f0000,0000003f\n")) == "0-5,48-53"


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "1-",
        "-1",
        "3-1",
        "1,,2",
        "1;2",
        "٣",
        "0-99999999999",
        "16384",
        "0x3",
        "1-2-3",
        "9" * 5000,
        "1," * 90000,
    ],
)
def test_anything_else_is_one_sentence_and_never_much_memory(text: str) -> None:
    with pytest.raises(ValueError) as refused:
        CpuSet.parse(text)
    assert len(str(refused.value)) < 200
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "g", "0x1", "123456789", "-1", "1_0", ",".join(["0"] * 600)])
def test_what_is_no_mask(text: str) -> None:
    with pytest.raises(ValueError):
        CpuSet.parse_mask(text)


def test_a_set_does_not_change() -> None:
    with pytest.raises(AttributeError):
        EMPTY._mask = 1
    with pytest.raises(ValueError):
        CpuSet.of([-1])
    with pytest.raises(ValueError):
        _ = EMPTY.first
    assert CpuSet.of([7, 9]).first == 7
    assert -1 not in CpuSet.of([1])
