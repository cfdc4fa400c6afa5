"""What Allocate injected names the devices that are held, in whatever dialect a plugin writes."""

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.devices.injection import Known, named_instead
from colocate.model.device import Allocation, DeviceNode, Mount
from tests.support.growth import check_growth

A, B = "GPU-709fac35-5f40-624b-90f7-b0a3db7a97a0", "GPU-fcda056f-77c6-7fdf-f7c7-6453511eaaa1"
MIG = "MIG-709fac35-5f40-624b-90f7-b0a3db7a97a1"


def others(held: list[str], injected: Allocation, known: list[str] | None = None) -> frozenset[str]:
    return named_instead(injected, Known(held), Known({*held, *(known or ())}))


def env(value: str) -> Allocation:
    return Allocation(envs={"VISIBLE": value})


@pytest.mark.parametrize(
    ("held", "value"),
    [
        ([A], A),
        ([A, B], f"{B},{A}"),
        ([f"{A}-1"], A),  # a share is held, the whole is injected
        ([f"{A}::0"], A),
        ([f"{A}-_-12"], A),
        ([f"{A}-1"], A.lower()),
        ([f"MIG-{A}/1/0"], f"MIG-{A}/1/0"),
        ([f"MIG-{A}/1/0"], A),
        ([A], f"{A},NVIDIA,16000,30:;"),
        ([A], f'[{{"uuid":"{A}","mem":16000}}]'),
        (["fan-0"], "fan-0.example:rw"),
        (["CM-0001", "CM-0002"], "CM-0002,CM-0001"),
        (["0000:3b:02.1"], "0000:3b:02.1"),
    ],
)
def test_dialects_that_name_what_is_held(held: list[str], value: str) -> None:
    assert not others(held, env(value), known=[f"{B}-1", "fan-1", "CM-0003", "0000:3b:02.2"])


@pytest.mark.parametrize(
    "value",
    ["", "0", "1", "3", "16000m", "true", "all", "void", "no-gpu-has-10MiB-to-run", "v1.34", "/tmp/x.cache"],
)
def test_numbers_and_plain_words_name_no_device(value: str) -> None:
    assert not others(["1"], env(value), known=["0", "1", "2", "3", "fan"])
    assert not others([f"{A}-1"], env(value), known=[f"{A}-0", f"{B}-0"])


def test_a_uuid_with_other_letters_before_it_is_of_another_kind_of_thing() -> None:
    assert not others([A], Allocation(envs={"POD": "f320f827-2a71-486b-a551-28c650dbaf1e", "PART": MIG}))
    bare = "30c615ee-298f-48ee-88b2-16ae59c1009c"
    assert not others(["f320f827-2a71-486b-a551-28c650dbaf1e"], env(bare)), "of bare UUIDs there are too many"


@pytest.mark.parametrize(
    "name", [Allocation(devices=[DeviceNode("/dev/{}")]), Allocation(cdi=["vendor.example/gpu={}"])]
)
def test_a_bare_uuid_in_the_name_of_a_device_is_another_where_bare_uuids_are_held(name: Allocation) -> None:
    held, other = "f320f827-2a71-486b-a551-28c650dbaf1e", "30c615ee-298f-48ee-88b2-16ae59c1009c"
    for uuid, expected in ((held, set[str]()), (other, {other})):
        injected = Allocation(
            devices=[DeviceNode(node.host_path.format(uuid)) for node in name.devices],
            cdi=[one.format(uuid) for one in name.cdi],
        )
        assert others([held], injected) == expected


@pytest.mark.parametrize("held", ["sda", "if0", "left"])
@pytest.mark.parametrize("other", ["sdb", "if1", "right", "b"])
def test_a_word_that_is_the_id_of_another_device_is_no_plain_word(held: str, other: str) -> None:
    for injected in (
        Allocation(devices=[DeviceNode(f"/dev/{other}")]),
        Allocation(cdi=[f"vendor.example/class={other}"]),
        env(other),
    ):
        assert others([held], injected, known=[other]) == {other}
        assert not others([held], injected)


def test_a_plugin_may_call_a_device_as_it_likes_within_the_container() -> None:
    assert not others(
        ["dev-2"], Allocation(devices=[DeviceNode("/dev/dev-2", "/dev/dev-1")]), known=["dev-1"]
    )


def test_an_id_that_looks_like_a_path_is_not_taken_apart() -> None:
    assert not others(["rack/sda"], env("rack/sda"), known=["sda"])


def test_one_long_word_costs_no_more_than_its_length() -> None:
    """A hundred times as much for ten times the word, if every beginning of it were cut out and looked up."""

    def looking(size: int) -> Callable[[], object]:
        return partial(others, ["dev-1", "1" * size], env("a/" * size), known=["dev-2", "a/b"])

    assert not looking(2500)()
    check_growth(looking, 2_500, 25_000, at_most=30)


def test_mounts_are_not_looked_at() -> None:
    assert not others(["dev-1"], Allocation(mounts=[Mount("/x", "/pods/dev-2")]), known=["dev-2"])


@pytest.mark.parametrize(
    "injected",
    [
        env(B),
        env(f"{A},{B}"),
        Allocation(annotations={"gpu": f"{B},NVIDIA,1000"}),
        Allocation(cdi=[f"nvidia.com/gpu={B}"]),
        Allocation(devices=[DeviceNode(f"/dev/{B}")]),
    ],
    ids=["env", "besides the held one", "annotation", "CDI", "device"],
)
def test_another_uuid_of_the_same_kind_is_another_device_even_if_nobody_knows_it(
    injected: Allocation,
) -> None:
    assert others([f"{A}-2"], injected) == {B}


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("dev-2", "dev-2"),
        ("dev-1,dev-2", "dev-2"),
        ("/dev/dev-2", "dev-2"),
        ("vendor.com/class=dev-2", "dev-2"),
        ("card-7", "card-7"),  # the whole of card-7-0
        ("0000:3b:02.2", "0000:3b:02.2"),
    ],
)
def test_a_device_that_is_known_and_not_held_is_another(value: str, named: str) -> None:
    assert others(["dev-1"], env(value), known=["dev-2", "card-7-0", "0000:3b:02.2"]) == {named}


def test_a_second_share_of_the_same_device_is_another_where_it_is_known() -> None:
    assert others([f"{A}-2"], env(f"{A}-1"), known=[f"{A}-1"]) == {f"{A}-1"}
    assert not others([f"{A}-2"], env(f"{A}-1"))


ids = st.sets(st.text("ab01-:", min_size=1, max_size=8), min_size=1, max_size=6)


@given(ids, ids, st.data())
def test_naming_exactly_what_is_held_is_never_reported(
    held: set[str], more: set[str], data: st.DataObject
) -> None:
    written = ",".join(data.draw(st.permutations(sorted(held))))
    assert not others(sorted(held), env(written), known=sorted(more))


@given(ids, st.text("ab01-:", min_size=1, max_size=8))
def test_names_agrees_with_its_definition(known: set[str], word: str) -> None:
    marks = "-_:.#@/"
    expected = word in known or any(
        (id.startswith(word) and id[len(word)] in marks) if len(id) > len(word) else False for id in known
    )
    expected = expected or any(
        word.startswith(id) and word[len(id)] in marks for id in known if len(id) < len(word)
    )
    assert Known(known).names(word) == expected
