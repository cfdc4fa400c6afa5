"""A body is measured alike in whatever parts it comes."""

from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.wire.body_meter import BodyMeter, Bound, TooMany, binding_meter

PARTS = st.lists(st.text("{[,a", max_size=20).map(str.encode), max_size=10)


def refused(parts: Sequence[bytes], small: int, most: int) -> bool:
    meter = BodyMeter(small, [Bound(most, "values", (b",", b"{"))])
    with suppress(TooMany):
        for part in parts:
            meter.add(part)
        return False
    return True


@given(parts=PARTS, small=st.integers(0, 60), most=st.integers(0, 20))
def test_it_is_refused_in_parts_as_it_is_as_a_whole(parts: list[bytes], small: int, most: int) -> None:
    body = b"".join(parts)
    assert refused(parts, small, most) == refused([body], small, most)
    assert refused([body], small, most) == (len(body) > small and body.count(b",") + body.count(b"{") > most)


def test_a_binding_of_megabytes_is_refused_by_its_first_part() -> None:
    meter = binding_meter()
    with pytest.raises(TooMany, match="the body holds more values"):
        meter.add(b'{"PodName":"' + b"a" * (17 << 10))
