"""An extended resource is put on a node by hand, where that would hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.resources.lab_resources import ResourceLab
from tests.support.plugins import FAN, Fans

from colocate.cluster.json_patch import Replace, Test
from colocate.devices.extended_resources import ResourceState
from colocate.devices.resources import advertisement
from colocate.devices.resources.advertisement import AdvertisementPlan, AdvertisementWish, read_wish
from colocate.devices.resources.refusal import RemovalRefused
from colocate.errors import UserError
from colocate.lab.cluster import MACHINE


async def advertise(
    lab: ResourceLab, count: int, node: str = MACHINE, dry_run: bool = False
) -> AdvertisementPlan:
    async with lab.client() as client:
        return await advertisement.advertise(
            client, lab.observer(client), AdvertisementWish(node, FAN, count), dry_run
        )


async def test_a_resource_is_there_with_the_next_sync_and_known_as_hand_patched(lab: ResourceLab) -> None:
    await advertise(lab, 4)
    assert lab.capacity(FAN) == ("4", None)
    await lab.sync()
    assert lab.capacity(FAN) == ("4", "4")
    found = (await lab.look()).find(FAN)
    assert found is not None
    assert found.state is ResourceState.HAND_PATCHED
    assert found.reason.startswith("colocate wrote its capacity last")


async def test_another_number_replaces_the_one_that_was_seen_and_the_same_one_changes_nothing(
    lab: ResourceLab,
) -> None:
    await advertise(lab, 4)
    await lab.sync()
    path = "/status/capacity/example.com~1fan"
    assert (await advertise(lab, 0)).patch == (Test(path, "4"), Replace(path, "0"))
    await lab.sync()
    assert (await advertise(lab, 0)).patch == ()


async def test_a_dry_run_changes_nothing(lab: ResourceLab) -> None:
    assert (await advertise(lab, 4, dry_run=True)).patch
    assert lab.capacity(FAN) == (None, None)


async def test_a_simulated_node_will_do_and_no_node_will_not(lab: ResourceLab) -> None:
    await advertise(lab, 4, "other")
    await lab.sync()
    assert lab.capacity(FAN, "other") == ("4", "4")
    with pytest.raises(UserError, match="there is no node 'nowhere'"):
        await advertise(lab, 4, "nowhere")


async def test_what_a_plugin_advertises_is_refused_also_while_the_kubelet_waits_for_it(
    lab: ResourceLab,
) -> None:
    group = await lab.node.serve(Fans("fan-0"))
    await lab.node.devices(FAN, 1)
    await lab.sync()
    with pytest.raises(RemovalRefused, match="is counted by the kubelet"):
        await advertise(lab, 4)
    await lab.node.kill(group)
    await lab.node.devices(FAN, 0)
    await lab.sync()
    with pytest.raises(RemovalRefused, match=r"its plugin has gone.*stop it and remove the resource first"):
        await advertise(lab, 4)
    await lab.clock.advance(320)
    assert lab.capacity(FAN) == ("0", "0")
    await advertise(lab, 4)
    await lab.clock.advance(320)
    assert lab.capacity(FAN) == ("4", "4"), "the kubelet has let go of it"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("example.com/fan", "has no number"),
        ("fan=3", "it needs a domain"),
        ("kubernetes.io/fan=3", "reserved for Kubernetes"),
        ("a/b/c=3", "one '/' only"),
        ("example.com/fan=-1", "'-1' is not a count"),
        ("example.com/fan=", "'' is not a count"),
        ("example.com/fan=1.5", "'1.5' is not a count"),
        ("example.com/fan=٣", "is not a count"),
        ("example.com/fan=9223372036854775808", "is not a count"),
    ],
)
def test_a_bad_wish_is_one_sentence(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_wish("n1", text)


@given(st.integers(0, advertisement.MOST))
def test_any_count_that_the_api_takes_is_read(count: int) -> None:
    assert read_wish("n1", f"{FAN}={count}") == AdvertisementWish("n1", FAN, count)
