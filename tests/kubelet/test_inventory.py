"""Which ids are published, whatever lists and holders come in which order."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.kubelet import inventory
from colocate.kubelet.inventory import DeviceInventory
from colocate.model.device import Device, Health

LINGER = 30.0

ids = st.sampled_from("abcdef")
devices = st.lists(st.builds(Device, ids, st.sampled_from(Health)), unique_by=lambda device: device.id)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("list"), devices),
        st.tuples(st.just("held"), st.sets(ids)),
        st.tuples(st.just("drop"), st.one_of(st.none(), st.sets(ids))),
        st.tuples(st.just("told"), st.none()),
        st.tuples(st.just("wait"), st.floats(0, 40)),
    )
)


def published(inventory_: DeviceInventory) -> list[Device]:
    return [*inventory_.listed, *(entry.device for entry in inventory_.leaving.values())]


@given(steps)
def test_an_id_is_dropped_only_unhealthy_lingered_and_unheld(history: list[tuple[str, Any]]) -> None:
    now, current = 0.0, DeviceInventory()
    told_at: dict[str, float] = {}
    for what, value in history:
        before = {device.id: device for device in published(current)}
        held: set[str] | None = set()
        if what == "list":
            current = inventory.replace(current, value)
            assert current.listed == value
        elif what == "held":
            current = inventory.keep_held(current, value)
        elif what == "told":
            current = inventory.told(current, now)
            for id in current.leaving:
                told_at.setdefault(id, now)
        elif what == "drop":
            held = value
            current = inventory.drop_unheld(current, held, now, LINGER)
        else:
            now += value
        after = {device.id: device for device in published(current)}
        assert len(after) == len(published(current)), "an id is published twice"
        assert current.healthy == [device.health for device in current.listed].count(Health.HEALTHY)
        assert {id: current.listed[place].id for id, place in current.places.items()} == {
            device.id: device.id for device in current.listed
        }
        for id in before.keys() - after.keys():
            assert what == "drop"
            assert held is not None
            assert id not in held
            assert before[id].health is Health.UNHEALTHY
            assert now - told_at[id] >= LINGER
        assert all(entry.device.health is Health.UNHEALTHY for entry in current.leaving.values())
        told_at = {id: since for id, since in told_at.items() if id in current.leaving}


@given(devices, devices)
def test_what_is_said_to_have_changed_is_all_that_has(old: list[Device], new: list[Device]) -> None:
    first = inventory.replace(DeviceInventory(), old)
    second = inventory.replace(first, new)
    if second.changed is not None:
        assert [device.id for device in old] == [device.id for device in new]
        assert list(second.changed) == [n for n in range(len(new)) if old[n] != new[n]]


@pytest.mark.parametrize("bad", [5, None, Device, [Device("a")]])
def test_what_is_no_device_is_refused_with_a_remedy(bad: Any) -> None:
    for before in (DeviceInventory(), inventory.replace(DeviceInventory(), [Device("x")])):
        with pytest.raises(ValueError, match="is not a device; list Device objects"):
            inventory.replace(before, [bad])


def test_an_id_listed_twice_is_named() -> None:
    with pytest.raises(ValueError, match="'b' is listed twice"):
        inventory.replace(DeviceInventory(), [Device("a"), Device("b"), Device("b")])


def test_a_withdrawn_id_keeps_its_numa_node() -> None:
    first = inventory.replace(DeviceInventory(), [Device("a", numa=(1,))])
    second = inventory.replace(first, [])
    assert published(second) == [Device("a", Health.UNHEALTHY, (1,))]


def test_ids_may_be_plain_text_and_stay_the_devices_they_were() -> None:
    first = inventory.replace(DeviceInventory(), ["a", "b"])
    second = inventory.replace(first, ["a", Device("b", Health.UNHEALTHY)])
    assert second.listed == [Device("a"), Device("b", Health.UNHEALTHY)]
    assert second.healthy == 1
