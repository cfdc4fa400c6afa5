"""Extended resources in a node's status."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from colocate.cluster import json_patch
from colocate.cluster.client import Client
from colocate.cluster.errors import PreconditionFailed
from colocate.cluster.json_patch import find
from colocate.cluster.node_status import patch_for, set_extended_resources
from colocate.cluster.resources import NODES
from colocate.model.json_patch import parse_pointer
from tests.lab_api.samples import node

FAN = "example.com/fan"

counts = st.dictionaries(st.sampled_from([FAN, "x/y", "z~/a"]), st.integers(0, 3) | st.none())


@given(
    st.dictionaries(st.sampled_from([FAN, "x/y", "cpu"]), st.sampled_from(["0", "1", "2"])),
    st.dictionaries(st.sampled_from([FAN, "x/y", "cpu"]), st.sampled_from(["0", "1", "2"])),
    counts,
)
def test_a_patch_brings_about_what_is_wanted_and_nothing_else(
    capacity: dict[str, str], allocatable: dict[str, str], wanted: dict[str, int | None]
) -> None:
    seen = {
        "metadata": {"resourceVersion": "7"},
        "status": {"capacity": capacity, "allocatable": allocatable},
    }
    changed = json_patch.apply(seen, patch_for(seen, wanted))
    for name in {*capacity, *allocatable, *wanted}:
        found = find(changed, ("status", "capacity", name))
        if name not in wanted:
            assert found == capacity.get(name)
        else:
            count = wanted[name]
            assert found == (None if count is None else str(count))
        assert find(changed, ("status", "allocatable", name)) == allocatable.get(name), "the kubelet's own"
    assert patch_for(changed if isinstance(changed, dict) else {}, wanted) == ()


@given(st.text(), st.text(), st.text())
def test_a_removal_names_its_resource_whatever_signs_are_in_it(domain: str, name: str, count: str) -> None:
    resource = f"{domain}/{name}"
    seen = {"metadata": {"resourceVersion": "7"}, "status": {"capacity": {resource: count, "cpu": "1"}}}
    test, remove = patch_for(seen, {resource: None})
    assert isinstance(test, json_patch.Test)
    assert isinstance(remove, json_patch.Remove)
    assert (test.path, test.value) == (remove.path, count)
    assert parse_pointer(remove.path) == ["status", "capacity", resource]
    assert "/" not in remove.path.removeprefix("/status/capacity/")
    assert find(json_patch.apply(seen, (test, remove)), ("status", "capacity")) == {"cpu": "1"}


async def test_a_resource_is_set_and_taken_away(client: Client) -> None:
    await client.create(NODES, node("n1"))
    assert await set_extended_resources(client, "n1", {FAN: 3}, dry_run=True)
    assert find(await client.get(NODES, "n1"), ("status", "capacity", FAN)) is None
    await set_extended_resources(client, "n1", {FAN: 3})
    assert find(await client.get(NODES, "n1"), ("status", "capacity", FAN)) == "3"
    assert await set_extended_resources(client, "n1", {FAN: 3}) == ()
    await set_extended_resources(client, "n1", {FAN: 4, "x/y": 1})
    await set_extended_resources(client, "n1", {FAN: None})
    found = await client.get(NODES, "n1")
    assert find(found, ("status", "capacity", FAN)) is None
    assert find(found, ("status", "capacity", "x/y")) == "1"


async def test_a_count_that_another_writer_has_changed_is_left_alone(client: Client) -> None:
    await client.create(NODES, node("n1"))
    await set_extended_resources(client, "n1", {FAN: 3})
    patch = patch_for(await client.get(NODES, "n1"), {FAN: 4})
    await set_extended_resources(client, "n1", {FAN: 9})
    with pytest.raises(PreconditionFailed):
        await client.patch(NODES, "n1", patch, subresource="status")


@pytest.mark.parametrize("name", ["cpu", "memory", "pods"])
def test_what_is_the_kubelets_own_is_not_touched(name: str) -> None:
    with pytest.raises(ValueError, match="not an extended resource"):
        patch_for({}, {name: 1})
