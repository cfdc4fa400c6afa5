"""Quantities are read as Kubernetes reads them."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.model import quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", 2),
        (2, 2),
        ("0", 0),
        ("1500m", Fraction(3, 2)),
        ("512Mi", 512 * 2**20),
        ("1.5Gi", 3 * 2**29),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("3k", 3000),
        ("100n", Fraction(1, 10**7)),
        ("-1Ki", -1024),
        (".5", Fraction(1, 2)),
        ("+5", 5),
    ],
)
def test_value(text: str | int, value: Fraction | int) -> None:
    assert quantity.parse(text) == value


@pytest.mark.parametrize("text", ["", "Mi", "1 Gi", "1KI", "1e", "0x1", "１", "1.2.3", "NaN", "1e9999"])
def test_not_a_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        quantity.parse(text)


@given(st.integers(-(10**20), 10**20), st.sampled_from(["", "k", "Mi", "E"]))
def test_whole_numbers_stay_whole(number: int, suffix: str) -> None:
    assert quantity.whole(f"{number}{suffix}") == quantity.parse(f"{number}{suffix}")


@given(st.integers(0, 10**12))
def test_parts_are_rounded_up(milli: int) -> None:
    assert quantity.whole(f"{milli}m") == (milli + 999) // 1000


@pytest.mark.parametrize(
    ("text", "millicores"), [("2", 2000), ("250m", 250), ("123456789n", 124), ("0.1", 100), (1.5, 1500)]
)
def test_cpu_is_counted_in_thousandths_rounded_up(text: str | float, millicores: int) -> None:
    assert quantity.milli(text) == millicores


def test_a_text_longer_than_any_quantity_is_none_and_not_remembered() -> None:
    long = "1" + "0" * 100_000
    with pytest.raises(ValueError, match="a text of 100001 characters"):
        quantity.parse(long)
    before = quantity._known_value.cache_info().currsize
    assert quantity.stated({"cpu": long, "memory": long}).empty
    assert quantity.stated({"cpu": 10**400, "memory": 10**400}).cpu == quantity.MOST
    assert quantity._known_value.cache_info().currsize <= before + 2


def test_every_quantity_that_kubernetes_counts_is_short_enough() -> None:
    assert quantity.parse("-" + "9" * 30 + "." + "9" * 30 + "Ki") < 0
