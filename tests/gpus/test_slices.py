"""The devices that stand for GPU memory: their ids, and whether one message to the kubelet has room for them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.gpus import message_bytes, short_keys, slices_of, smallest_unit
from colocate.model.gpu import Gpu
from colocate.wire import deviceplugin_pb2 as dp

GIB = 1024
LIMIT = 4 << 20


def spread(number: int, memory: int, numa: int | None = None) -> Gpu:
    """One whose UUID differs from the others in its first characters, as real ones do."""
    return Gpu(uuid=f"GPU-{number * 0x1234567 & 0xFFFFFFFF:08x}-aaaa", index=number, memory=memory, numa=numa)


def on_the_wire(gpus: list[Gpu], unit: int) -> int:
    """The size of the message as protobuf itself makes it, with every device Unhealthy."""
    message = dp.ListAndWatchResponse()
    near = {each.uuid: each.numa for each in gpus}
    for uuid, ids in slices_of(gpus, unit).ids.items():
        for id in ids:
            device = message.devices.add(ID=id, health="Unhealthy")
            if (node := near[uuid]) is not None:
                device.topology.nodes.add(ID=node)
    return message.ByteSize()


def test_an_id_names_its_gpu_and_the_slice() -> None:
    one = Gpu(uuid="GPU-1f3a99c0-1111-2222-3333-444444444444", index=0, memory=40)
    slices = slices_of([one], 1)
    assert list(slices.ids[one.uuid])[:3] == ["1f3a-0", "1f3a-1", "1f3a-2"]
    assert slices.ids[one.uuid][39] == "1f3a-13"
    assert slices.gpu_of("1f3a-13") == one.uuid


@pytest.mark.parametrize(
    "id", ["", "1f3a", "1f3a-", "1f3a-14", "2f3a-0", "1f3a-00", "1f3a--1", "1f3a-0 ", "1f3a-é"]
)
def test_what_is_no_id_of_these_names_no_gpu(id: str) -> None:
    one = Gpu(uuid="GPU-1f3a99c0-1111-2222-3333-444444444444", index=0, memory=40)
    assert slices_of([one], 1).gpu_of(id) is None


def test_gpus_of_several_sizes_have_as_many_slices_as_each_has_memory() -> None:
    small, large = spread(1, 16 * GIB), spread(2, 80 * GIB)
    slices = slices_of([small, large], GIB)
    assert {uuid: len(ids) for uuid, ids in slices.ids.items()} == {small.uuid: 16, large.uuid: 80}


def test_what_is_left_beyond_whole_units_is_nobodys() -> None:
    # An A100 of 40 GiB says 40536 MiB.
    assert len(slices_of([spread(1, 40_536)], GIB).ids[spread(1, 0).uuid]) == 39


def test_uuids_that_begin_alike_get_longer_names() -> None:
    keys = short_keys(["GPU-1f3a99c0-x", "GPU-1f3a98c0-x", "GPU-77770000-x"])
    assert keys == {"GPU-1f3a99c0-x": "1f3a99", "GPU-1f3a98c0-x": "1f3a98", "GPU-77770000-x": "7777"}


def test_ids_depend_on_the_gpus_and_the_unit_alone() -> None:
    first, second = spread(1, 100), spread(2, 200)
    assert slices_of([first, second], 7).ids == slices_of([second, first], 7).ids


def test_eight_gpus_of_80_gib_do_not_fit_at_1_mib_and_fit_at_the_unit_that_is_named() -> None:
    gpus = [spread(number, 80 * GIB, numa=number // 4) for number in range(8)]
    assert message_bytes(gpus, 1) > LIMIT
    unit = smallest_unit(gpus, LIMIT)
    assert unit == 5
    assert message_bytes(gpus, unit) <= LIMIT < message_bytes(gpus, unit - 1)
    assert on_the_wire(gpus, unit) == message_bytes(gpus, unit)


def test_one_gpu_of_80_gib_fits_at_1_mib() -> None:
    assert smallest_unit([spread(1, 80 * GIB)], LIMIT) == 1


def test_without_gpus_any_unit_fits() -> None:
    assert smallest_unit([], LIMIT) == 1
    assert message_bytes([], 1) == 0


some_gpus = st.lists(
    st.builds(
        Gpu,
        uuid=st.uuids().map(lambda uuid: f"GPU-{uuid}"),
        index=st.just(0),
        memory=st.integers(0, 3000),
        numa=st.none() | st.integers(0, 300),
    ),
    max_size=6,
    unique_by=lambda each: each.uuid,
)


@given(some_gpus, st.integers(1, 64))
def test_the_size_by_arithmetic_is_that_on_the_wire(gpus: list[Gpu], unit: int) -> None:
    assert message_bytes(gpus, unit) == on_the_wire(gpus, unit)


@given(some_gpus, st.integers(1, 64))
def test_every_id_is_unique_and_leads_back_to_its_gpu(gpus: list[Gpu], unit: int) -> None:
    slices = slices_of(gpus, unit)
    ids = [id for some in slices.ids.values() for id in some]
    assert len(set(ids)) == len(ids) == sum(each.memory // unit for each in gpus)
    assert all(slices.gpu_of(id) == uuid for uuid, some in slices.ids.items() for id in some)


@given(some_gpus, st.integers(100, 20_000))
def test_the_smallest_unit_fits_and_none_below_it_does(gpus: list[Gpu], limit: int) -> None:
    unit = smallest_unit(gpus, limit)
    largest = max((each.memory for each in gpus), default=0)
    # Where not even one slice of each fits, the largest unit is all that can be said.
    assert message_bytes(gpus, unit) <= limit or unit == largest
    assert unit == 1 or message_bytes(gpus, unit - 1) > limit


@given(st.lists(st.text(max_size=12), max_size=6, unique=True))
def test_odd_uuids_get_names_of_their_own_without_blanks_or_commas(uuids: list[str]) -> None:
    keys = short_keys(uuids)
    assert len(set(keys.values())) == len(uuids)
    assert all(key and not set(key) & set(" ,\t\n-") for key in keys.values())
