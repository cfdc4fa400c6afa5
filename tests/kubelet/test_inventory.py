"""Which ids are published, whatever lists and holders come in which order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.kubelet import inventory
from colocate.kubelet.inventory import Inventory
from colocate.model.device import Device, Health

LINGER = 30.0

ids = st.sampled_from("abcdef")
devices = st.lists(st.builds(Device, ids, st.sampled_from(Health)), unique_by=lambda device: device.id)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("list"), devices),
        st.tuples(st.just("held"), st.sets(ids)),
        st.tuples(st.just("drop"), st.one_of(st.none(), st.sets(ids))),
        st.tuples(st.just("wait"), st.floats(0, 40)),
    )
)


@given(steps)
def test_an_id_is_dropped_only_unhealthy_lingered_and_unheld(history: list[tuple[str, object]]) -> None:
    now, current = 0.0, Inventory()
    unhealthy_since: dict[str, float] = {}
    for what, value in history:
        before = {device.id: device for device in current.published}
        held: set[str] | None = set()
        if what == "list":
            current = inventory.replace(current, value, now)  # type: ignore[arg-type]
        elif what == "held":
            current = inventory.keep_held(current, value, now)  # type: ignore[arg-type]
        elif what == "drop":
            held = value  # type: ignore[assignment]
            current = inventory.drop_unheld(current, held, now, LINGER)
        else:
            now += value  # type: ignore[operator]
        after = {device.id: device for device in current.published}
        assert len(after) == len(current.published), "an id is published twice"
        for id in before.keys() - after.keys():
            assert what == "drop"
            assert held is not None
            assert id not in held
            assert before[id].health is Health.UNHEALTHY
            assert now - unhealthy_since[id] >= LINGER
        for id in current.wanted:
            assert after[id] == current.wanted[id]
        for id in current.leaving:
            assert after[id].health is Health.UNHEALTHY
            unhealthy_since.setdefault(id, now)
        unhealthy_since = {id: since for id, since in unhealthy_since.items() if id in current.leaving}


def test_an_id_listed_twice_is_named() -> None:
    with pytest.raises(ValueError, match="'b' is listed twice"):
        inventory.replace(Inventory(), [Device("a"), Device("b"), Device("b")], 0)


def test_a_withdrawn_id_keeps_its_numa_node() -> None:
    first = inventory.replace(Inventory(), [Device("a", numa=(1,))], 0)
    second = inventory.replace(first, [], 5)
    assert second.published == [Device("a", Health.UNHEALTHY, (1,))]
