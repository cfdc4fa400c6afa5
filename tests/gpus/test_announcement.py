"""What an agent says of its node is what a scheduler reads; nonsense is refused in one sentence."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.gpus import (
    ANNOUNCED,
    DOSLAB,
    AnnouncedPod,
    GpuAnnouncement,
    GpuRoom,
    announced,
    announcement_of,
    short_name,
)
from colocate.model.gpu import Gpu, GpuInventory

gpus = st.builds(
    Gpu,
    uuid=st.uuids().map(lambda one: f"GPU-{one}"),
    index=st.integers(0, 63),
    memory=st.integers(1, 1 << 24),
    model=st.sampled_from(["", "NVIDIA A100-SXM4-40GB", "Tesla T4"]),
    numa=st.none() | st.integers(0, 7),
    mig=st.booleans(),
    healthy=st.booleans(),
)
inventories = st.lists(gpus, max_size=16, unique_by=lambda gpu: gpu.uuid).map(
    lambda found: GpuInventory(tuple(found))
)
TWO = GpuInventory((Gpu(uuid="GPU-a", index=0, memory=16), Gpu(uuid="GPU-b", index=1, memory=16)))
ONE = '{"gpus":[{"uuid":"a","memory":5}],'


def read(text: str) -> GpuAnnouncement:
    found = announced({ANNOUNCED: text})
    assert found is not None
    return found


@st.composite
def announcements(draw: st.DrawFn) -> GpuAnnouncement:
    inventory = draw(inventories)
    uuids = [gpu.uuid for gpu in inventory.gpus]
    uids = st.uuids().map(str)
    rooms = st.dictionaries(
        st.sampled_from(uuids), st.builds(GpuRoom, st.integers(0, 1 << 24), st.integers(0, 100)), max_size=3
    )
    lists = st.lists(st.lists(st.sampled_from(uuids), max_size=3).map(tuple), max_size=3).map(tuple)
    pods = st.builds(
        AnnouncedPod,
        rooms=rooms,
        number=st.integers(0, (1 << 63) - 1),
        settled=st.booleans(),
        due=st.dictionaries(st.just(DOSLAB.memory), lists),
    )
    return GpuAnnouncement(
        inventory=inventory,
        units=draw(st.dictionaries(st.sampled_from([DOSLAB.memory, "b/c"]), st.integers(1, 1024))),
        pods=draw(st.none() | st.dictionaries(uids, pods, max_size=5)) if uuids else {},
        absent=draw(st.frozensets(uids, max_size=5)),
    )


@given(announcements())
def test_what_is_announced_is_read(said: GpuAnnouncement) -> None:
    found = read(announcement_of(said.inventory, said.units, said.pods, sorted(said.absent)))
    plain = [(gpu.uuid, gpu.index, gpu.memory, gpu.model, gpu.numa) for gpu in said.inventory.gpus]
    assert [(gpu.uuid, gpu.index, gpu.memory, gpu.model, gpu.numa) for gpu in found.inventory.gpus] == plain
    assert [(gpu.mig, gpu.healthy) for gpu in found.inventory.gpus] == [
        (gpu.mig, gpu.healthy) for gpu in said.inventory.gpus
    ]
    pods = said.pods and {
        uid: msgspec.structs.replace(pod, due={}) if pod.settled else pod for uid, pod in said.pods.items()
    }
    assert (found.units, found.pods, found.absent, found.rest) == (said.units, pods, said.absent, {})
    assert not found.unnamed


def test_a_node_that_says_nothing_has_no_gpus_known() -> None:
    assert announced({}) is None


def test_the_list_of_older_agents_says_nothing_of_who_has_what() -> None:
    found = read('[{"uuid":"GPU-1","memory":5,"index":3}]')
    assert [(gpu.uuid, gpu.memory, gpu.index) for gpu in found.inventory.gpus] == [("GPU-1", 5, 3)]
    assert found.pods is None
    assert read(announcement_of(TWO)).pods is None
    assert read(announcement_of(TWO, pods={})).pods == {}


def test_of_absent_pods_without_end_the_first_are_named() -> None:
    """In the order in which they are given: the oldest."""
    uids = [f"u{number}" for number in reversed(range(300))]
    assert read(announcement_of(TWO, {}, {}, uids)).absent == set(uids[:256])


@given(st.integers(0, 2000), st.integers(0, 400))
def test_of_pods_without_end_every_one_is_named_or_in_the_rest(settled: int, waiting: int) -> None:
    """Those that may still be swapped are named first; nothing that is held is left out."""
    pods = {
        f"{number:08}-0000-0000-0000-{number:012}": AnnouncedPod(
            rooms={f"GPU-{'ab'[number % 2]}": GpuRoom(number, 1)}, number=1 << 62, settled=number < settled
        )
        for number in range(settled + waiting)
    }
    text = announcement_of(TWO, {}, pods)
    assert len(text) <= 64 << 10
    found = read(text)
    assert found.pods is not None
    assert {uid for uid, pod in pods.items() if not pod.settled} <= found.pods.keys() or len(found.pods) > 300
    for gpu in ("GPU-a", "GPU-b"):
        held = sum((pod.rooms.get(gpu, GpuRoom()) for pod in pods.values()), GpuRoom())
        named = sum((pod.rooms.get(gpu, GpuRoom()) for pod in found.pods.values()), GpuRoom())
        assert named + found.rest.get(gpu, GpuRoom()) == held
    assert found.unnamed == {short_name(uid) for uid in pods.keys() - found.pods.keys()}
    assert announcement_of(TWO, {}, dict(reversed(pods.items()))) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cannot be read"),
        ("[" * 10_000, "cannot be read"),
        ('{"a":1}', "cannot be read"),
        ('[{"uuid":"GPU-1"}]', "cannot be read"),
        ('[{"uuid":"GPU-1","memory":-5}]', "impossible memory"),
        ('[{"uuid":"GPU-1","memory":99999999999}]', "impossible memory"),
        ('[{"uuid":"","memory":5}]', "without a usable UUID"),
        ('[{"uuid":"a,b","memory":5}]', "without a usable UUID"),
        ('[{"uuid":"a","memory":5},{"uuid":"a","memory":5}]', "names a GPU twice"),
        (json.dumps([{"uuid": f"g{n}", "memory": 1} for n in range(65)]), "names 65 GPUs"),
        ("[" + " " * 70_000 + "]", "has more than 65536 characters"),
        (ONE + '"units":{"a/b":0}}', "impossible units"),
        (ONE + '"units":{"a b":1}}', "impossible units"),
        (ONE + '"pods":{"u":{"gpus":{"1":[1,1]}}}}', "that it does not name"),
        (ONE + '"pods":{"u":{"gpus":{"-1":[1,1]}}}}', "that it does not name"),
        (ONE + '"pods":{"u":{"gpus":{"0":[-1,1]}}}}', "impossible part"),
        (ONE + '"pods":{"u":{"gpus":{"0":[1,99999999]}}}}', "impossible part"),
        (ONE + '"pods":{"u":{"due":{"r":[[7]]}}}}', "that it does not name"),
        (ONE + '"pods":{"u":{"n":-1}}}', "usable uid or number"),
        (ONE + '"pods":{"a b":{}}}', "usable uid or number"),
        (ONE + f'"pods":{json.dumps({f"u{n}": {} for n in range(1025)})}}}', "names 1025 pods"),
        (ONE + f'"absent":{json.dumps([f"u{n}" for n in range(257)])}}}', "too many absent"),
        (ONE + '"rest":{"x":[1,1]}}', "that it does not name"),
    ],
)
def test_nonsense_is_refused_with_a_sentence(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        announced({ANNOUNCED: text})
