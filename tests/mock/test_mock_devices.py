"""Which devices a mock resource has, and how many fit."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.growth import check_growth

from colocate.devices.mock import inject as mock_inject
from colocate.devices.mock.devices import devices_of, how_many_fit, ids_of, preferred
from colocate.devices.mock.section import MockResource, Numa, Spread
from colocate.errors import UserError
from colocate.kubelet.broadcast import Broadcast
from colocate.model.device import Allocation, DeviceNode, Mount


def gpus(
    count: int = 4, id_prefix: str | None = None, numa: Numa | None = None, inject: Allocation | None = None
) -> MockResource:
    return MockResource(
        name="mock/gpu", count=count, id_prefix=id_prefix, numa=numa, inject=inject or Allocation()
    )


def test_ids_are_numbered_with_four_digits() -> None:
    assert ids_of(gpus(2)) == ["gpu-0000", "gpu-0001"]
    assert ids_of(gpus(10_001))[-1] == "gpu-10000"


def test_a_growing_count_keeps_the_ids_that_were_there() -> None:
    assert ids_of(gpus(12_000))[:9] == ids_of(gpus(9))


def test_ids_may_be_given() -> None:
    assert ids_of(MockResource(name="mock/gpu", ids=("b", "a"))) == ("b", "a")


@pytest.mark.parametrize(
    ("spread", "nodes"), [(Spread.INTERLEAVE, [0, 1, 0, 1, 0]), (Spread.BLOCKS, [0, 0, 0, 1, 1])]
)
def test_devices_are_spread_over_numa_nodes(spread: Spread, nodes: list[int]) -> None:
    devices = devices_of(gpus(5, numa=Numa(nodes=(0, 1), spread=spread)))
    assert [device.numa for device in devices] == [(node,) for node in nodes]


@given(
    st.integers(0, 400),
    st.sampled_from([None, 0, 1, 127, 128, 1023]),
)
def test_what_is_said_to_fit_fits_and_one_more_does_not(prefix: int, node: int | None) -> None:
    numa = None if node is None else Numa(nodes=(node,))
    resource = gpus(0, id_prefix="x" * (1500 + prefix), numa=numa)
    fit = how_many_fit(resource)

    def publish(count: int) -> None:
        devices = devices_of(gpus(count, id_prefix=resource.id_prefix, numa=numa))
        Broadcast("mock/gpu").publish([device.unhealthy() for device in devices])

    publish(fit)
    with pytest.raises(UserError):
        publish(fit + 1)


def test_the_limit_holds_across_numbers_of_different_length() -> None:
    fit = how_many_fit(gpus())
    assert fit > 100_000
    Broadcast("mock/gpu").publish([device.unhealthy() for device in devices_of(gpus(fit))])
    with pytest.raises(UserError, match=f"{fit} of these would fit"):
        Broadcast("mock/gpu").publish([device.unhealthy() for device in devices_of(gpus(fit + 1))])


def test_how_many_fit_is_known_without_making_them() -> None:
    check_growth(lambda count: partial(how_many_fit, gpus(count)), 10**4, 10**9, at_most=100)


def test_given_ids_are_counted_one_by_one() -> None:
    resource = MockResource(name="mock/gpu", ids=tuple(f"{n}{'x' * 1_000_000}" for n in range(6)))
    assert how_many_fit(resource) == 4


class TestPreferred:
    numa = {"a": 0, "b": 1, "c": 0, "d": 1, "e": 1}  # noqa: RUF012 -- read only

    def test_from_the_node_where_they_just_fit(self) -> None:
        assert preferred(self.numa, list("abcde"), [], 2) == ["a", "c"]
        assert preferred(self.numa, list("abcde"), [], 3) == ["b", "d", "e"]

    def test_near_those_that_must_be_included(self) -> None:
        assert preferred(self.numa, list("abcde"), ["b"], 2) == ["b", "d"]

    def test_from_the_fullest_nodes_where_none_has_enough(self) -> None:
        assert preferred(self.numa, list("abcde"), [], 4) == ["b", "d", "e", "a"]

    @given(st.sets(st.sampled_from("abcdefgh"), min_size=1), st.data())
    def test_always_as_many_as_asked_for(self, available: set[str], data: st.DataObject) -> None:
        size = data.draw(st.integers(1, len(available)))
        must = data.draw(st.lists(st.sampled_from(sorted(available)), unique=True, max_size=size))
        chosen = preferred(self.numa, sorted(available), must, size)
        assert len(set(chosen)) == size
        assert set(must) <= set(chosen) <= available


class TestInject:
    def test_placeholders_are_filled_in_the_order_of_the_kubelet(self) -> None:
        inject = Allocation(
            envs={"A": "{ids}", "B": "{count} of {resource}", "C": "{{ids}}"},
            mounts=[Mount("/c/{count}", "/h/{ids}", True)],
            devices=[DeviceNode("/dev/{ids}")],
            annotations={"x": "{ids}"},
            cdi=["v/c={ids}"],
        )
        assert mock_inject.filled(gpus(inject=inject), ["q", "p"]) == Allocation(
            envs={"A": "q,p", "B": "2 of mock/gpu", "C": "{ids}"},
            mounts=[Mount("/c/2", "/h/q,p", True)],
            devices=[DeviceNode("/dev/q,p")],
            annotations={"x": "q,p"},
            cdi=["v/c=q,p"],
        )

    @pytest.mark.parametrize(
        ("name", "variable"), [("mock/gpu", "MOCK_GPU"), ("3d.example.com/a-b.c", "_3D_EXAMPLE_COM_A_B_C")]
    )
    def test_without_any_env_one_is_named_after_the_resource(self, name: str, variable: str) -> None:
        assert mock_inject.filled(MockResource(name=name, count=1), ["x"]).envs == {variable: "x"}
