"""How many devices a kubelet can bear."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.gpus import (
    COLOCATE,
    DOSLAB,
    GPUSHARE,
    Dialect,
    bearable_unit,
    device_cost,
    dialect,
    gpu_offer,
)
from colocate.model.device_cost import MOST_LOOKUPS, DeviceCost, DeviceOffer, kubelet_version, why_too_dear
from colocate.model.gpu import Gpu


def machine(count: int, gib: int) -> list[Gpu]:
    return [Gpu(uuid=f"GPU-{place}aaa", index=place, memory=gib << 10) for place in range(count)]


def why(gpus: list[Gpu], dialects: list[Dialect], others: int = 0) -> str:
    beside = DeviceOffer("mock/fan", DeviceCost(others, others), "offer fewer fans")
    return why_too_dear([gpu_offer(gpus, dialects, others), *([beside] if others else [])])


@pytest.mark.parametrize(("count", "gib"), [(1, 16), (8, 24), (8, 80), (8, 192)])
def test_the_default_unit_is_borne_on_every_machine_of_the_table(count: int, gib: int) -> None:
    gpus = machine(count, gib)
    assert not why(gpus, [COLOCATE])
    assert device_cost(gpus, [COLOCATE]).seconds < 5
    assert why(gpus, [DOSLAB])


def test_memory_that_one_dialect_gives_is_gone_in_the_others() -> None:
    """2560 devices of 256 MiB and 640 of 1 GiB: all are looked up, and pods can hold at most 2560 ids."""
    cost = device_cost(machine(8, 80), [COLOCATE, GPUSHARE], others=100)
    assert (cost.devices, cost.held) == (2560 + 640 + 100, 2560 + 100)


def test_what_drains_is_not_counted_for_it_cannot_be_taken_back() -> None:
    assert not why(machine(8, 80), [COLOCATE, dialect("doslab", drains=True)])


def test_who_offers_too_much_is_told_the_ways_out() -> None:
    said = why(machine(8, 80), [DOSLAB], others=7)
    for words in (
        "beside 7 devices of mock/fan",
        "a unit of 256Mi",
        "gpu units",
        "drain: true",
        "DRA",
    ):
        assert words in said


def test_what_offers_most_is_told_how_to_offer_less() -> None:
    said = why(machine(1, 16), [COLOCATE], others=20_000)
    assert said.startswith(
        "mock/fan beside 64 devices of colocate.dev/gpu-memory in 256 MiB: 20064 devices, "
    )
    assert said.endswith("while no pod starts; offer fewer fans")


@given(st.integers(1, 16), st.integers(1, 400), st.integers(0, 9000))
def test_the_unit_that_is_named_is_borne(count: int, gib: int, others: int) -> None:
    gpus = machine(count, gib)
    unit = bearable_unit(gpus, others)
    assert unit >= gib << 10 or device_cost(gpus, [dialect("colocate", unit)], others).lookups <= MOST_LOOKUPS
    assert unit == 1 or device_cost(gpus, [dialect("colocate", unit // 2)], others).lookups > MOST_LOOKUPS


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("v1.36.4", (1, 36)),
        ("v1.35.0-rc.1+k3s1", (1, 35)),
        ("1.36", (1, 36)),
        ("v1.37.0+colocate-lab", (1, 37)),
        ("", None),
        ("v1", None),
        ("v1.x", None),
        ("v1.3600000", None),
        ("nonsense 1.36", None),
    ],
)
def test_a_version_that_cannot_be_read_is_none(said: str, version: tuple[int, int] | None) -> None:
    assert kubelet_version(said) == version
