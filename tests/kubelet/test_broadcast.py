"""Lists on their way to the kubelet: the bytes are right, none is lost, many at once are one."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.errors import UserError
from colocate.kubelet.broadcast import MESSAGE_LIMIT, Broadcast
from colocate.model.device import Device, Health
from colocate.wire import deviceplugin_pb2 as dp

devices = st.lists(
    st.builds(Device, st.text(max_size=5), st.sampled_from(Health), st.lists(st.integers(0, 9)).map(tuple)),
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
    broadcast.close()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert broadcast.listeners == 0


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
