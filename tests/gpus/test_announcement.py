"""What an agent says of its node's GPUs is what a scheduler reads; nonsense is refused in one sentence."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.gpus import ANNOUNCED, announced, announcement_of
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


@given(st.lists(gpus, max_size=16, unique_by=lambda gpu: gpu.uuid))
def test_what_is_announced_is_read(found: list[Gpu]) -> None:
    read = announced({ANNOUNCED: announcement_of(GpuInventory(tuple(found)))})
    assert read is not None
    for said, gpu in zip(read.gpus, found, strict=True):
        assert (said.uuid, said.index, said.memory, said.model) == (
            gpu.uuid,
            gpu.index,
            gpu.memory,
            gpu.model,
        )
        assert (said.mig, said.healthy, said.numa) == (gpu.mig, gpu.healthy, gpu.numa)


def test_a_node_that_says_nothing_has_no_gpus_known() -> None:
    assert announced({}) is None


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
        ("[" + " " * 40_000 + "]", "has 40002 characters"),
    ],
)
def test_nonsense_is_refused_with_a_sentence(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        announced({ANNOUNCED: text})
