"""Lists on their way to the kubelet: the bytes are right, none is lost, many at once are one."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.errors import UserError
from colocate.kubelet import MESSAGE_LIMIT
from colocate.kubelet.broadcast import Broadcast
from colocate.model.device import Device, Health
from colocate.wire import deviceplugin_pb2 as dp

devices = st.lists(
    st.builds(
        Device,
        st.text(min_size=1, max_size=5),
        st.sampled_from(Health),
        st.lists(st.integers(0, 9)).map(tuple),
    ),
    unique_by=lambda device: device.id,
)


def payload_of(broadcast: Broadcast) -> bytes:
    return broadcast._payload


@given(st.lists(devices, min_size=1))
def test_the_bytes_are_those_of_the_whole_message(lists: list[list[Device]]) -> None:
    broadcast = Broadcast("example.com/fan")
    for current in lists:
        broadcast.publish(current)
        message = dp.ListAndWatchResponse.FromString(payload_of(broadcast))
        sent = [(d.ID, d.health, tuple(node.ID for node in d.topology.nodes)) for d in message.devices]
        assert sent == [(device.id, device.health, device.numa) for device in current]
        assert message.SerializeToString() == payload_of(broadcast)


async def test_a_listener_gets_the_newest_list_and_every_later_one() -> None:
    broadcast = Broadcast("example.com/fan")
    broadcast.publish([Device("a")])
    broadcast.publish([Device("b")])
    stream = broadcast.lists()
    assert b"b" in await anext(stream)
    assert broadcast.listeners == 1
    pending = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    broadcast.publish([Device("c")])
    broadcast.publish([Device("d")])
    assert b"d" in await pending
    hanging_up = asyncio.ensure_future(broadcast.hang_up())
    await asyncio.sleep(0)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    await hanging_up
    assert broadcast.listeners == 0


async def test_streams_that_open_while_all_are_ended_are_ended_too_and_later_ones_served() -> None:
    async def last(stream: AsyncIterator[bytes]) -> list[bytes]:
        return [taken async for taken in stream]

    broadcast = Broadcast("example.com/fan")
    broadcast.publish([Device("a")])
    open_one = broadcast.lists()
    await anext(open_one)
    hanging_up = asyncio.ensure_future(broadcast.hang_up())
    await asyncio.sleep(0)
    late = asyncio.ensure_future(last(broadcast.lists()))
    await asyncio.sleep(0)
    assert await last(open_one) == []
    async with asyncio.timeout(30):
        assert len(await late) == 1
        await hanging_up
    assert b"a" in await anext(broadcast.lists())


@given(st.lists(st.tuples(st.integers(0, 99), st.sampled_from(Health)), max_size=20), st.integers(0, 3))
def test_a_change_in_place_gives_the_bytes_of_the_whole(
    changes: list[tuple[int, Health]], leaving: int
) -> None:
    listed = [Device(f"d{n}") for n in range(100)]
    gone = [Device(f"x{n}", Health.UNHEALTHY) for n in range(leaving)]
    broadcast = Broadcast("example.com/fan")
    broadcast.publish(listed, gone)
    for place, health in changes:
        listed = [*listed[:place], Device(f"d{place}", health), *listed[place + 1 :]]
        broadcast.publish(listed, gone, changed=[place])
    fresh = Broadcast("example.com/fan")
    fresh.publish([*listed, *gone])
    assert payload_of(broadcast) == payload_of(fresh)


@pytest.mark.parametrize(
    ("device", "why"),
    [
        (Device(""), "not empty"),
        (Device(3), "not empty"),  # type: ignore[arg-type]
        (Device("a", "sick"), "Health.HEALTHY or"),  # type: ignore[arg-type]
        (Device("a", numa=(-1,)), "from 0 on"),
        (Device("a", numa=[0]), "a tuple of numbers"),  # type: ignore[arg-type]
        (Device("a", numa=(2**70,)), "from 0 on"),
    ],
)
def test_a_device_that_a_kubelet_would_choke_on_is_refused(device: Device, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Broadcast("example.com/fan").publish([device])


async def test_a_change_between_two_reads_is_not_lost() -> None:
    broadcast = Broadcast("example.com/fan")
    broadcast.publish([Device("a")])
    stream = broadcast.lists()
    await anext(stream)
    broadcast.publish([Device("b")])  # While the listener is busy with the one before.
    assert b"b" in await asyncio.wait_for(anext(stream), 10)


def test_an_equal_list_is_no_change() -> None:
    broadcast = Broadcast("example.com/fan")
    assert broadcast.publish([])
    assert not broadcast.publish([])
    assert broadcast.publish([Device("a")])
    assert not broadcast.publish([Device("a")])
    assert broadcast.generation == 2


@pytest.mark.parametrize("id_length", [7, 100, 1000])
def test_the_number_that_would_fit_fits_and_one_more_does_not(id_length: int) -> None:
    many = [Device(f"{n:0{id_length}}") for n in range(2 * MESSAGE_LIMIT // (id_length + 13))]
    broadcast = Broadcast("example.com/fan")
    with pytest.raises(UserError) as refused:
        broadcast.publish(many)
    fit = int(str(refused.value).split(": ")[2].split()[0])
    assert broadcast.publish(many[:fit])
    assert len(payload_of(broadcast)) <= MESSAGE_LIMIT
    with pytest.raises(UserError):
        broadcast.publish(many[: fit + 1])


async def test_a_refused_list_leaves_the_last_one() -> None:
    broadcast = Broadcast("example.com/fan")
    broadcast.publish([Device("a")])
    with pytest.raises(UserError):
        broadcast.publish([Device(f"{n:0100}") for n in range(50_000)])
    assert b"a" in await anext(broadcast.lists())
