"""What a pod asks for, and accounts that are never recounted."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.lab.api.objects import Object
from colocate.lab.scheduler.facts import read_pod
from colocate.lab.scheduler.requests import Account, PodRequests, amounts_of

from .lab import pod


def container(name: str, sidecar: bool = False, **requests: Any) -> Object:
    body: Object = {"name": name, "image": "busybox", "resources": {"requests": requests}}
    return body | ({"restartPolicy": "Always"} if sidecar else {})


def wanted(**spec: Any) -> dict[str, int]:
    return read_pod(pod(**spec)).requests.amounts


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"containers": [container("a", cpu="100m"), container("b", cpu="0.2", memory="1Ki")]},
         {"cpu": 300, "memory": 1024}),
        ({"containers": [container("a", cpu="1")], "initContainers": [container("i", cpu="3")]},
         {"cpu": 3000}),
        ({"containers": [container("a", cpu="2")], "initContainers": [container("i", cpu="1")]},
         {"cpu": 2000}),
        ({"containers": [container("a", cpu="1")],
          "initContainers": [container("i", cpu="1"), container("j", cpu="2")]},
         {"cpu": 2000}),
        ({"containers": [container("a", cpu="1")],
          "initContainers": [container("s", sidecar=True, cpu="1"), container("i", cpu="2")]},
         {"cpu": 3000}),
        ({"containers": [container("a", cpu="1")],
          "initContainers": [container("i", cpu="2"), container("s", sidecar=True, cpu="2")]},
         {"cpu": 3000}),
        ({"containers": [container("a", cpu="1")], "overhead": {"cpu": "250m", "memory": "1Mi"}},
         {"cpu": 1250, "memory": 1024**2}),
        ({"containers": [container("a", cpu="1")], "resources": {"requests": {"cpu": "4"}}},
         {"cpu": 4000}),
        ({"containers": [container("a") | {"resources": {"requests": {"mock.com/gpu": "2"}}}]},
         {"mock.com/gpu": 2}),
        ({"containers": [container("a", cpu="0")]}, {}),
        ({"containers": [container("a", cpu="1n")]}, {"cpu": 1}),
    ],
)  # fmt: skip
def test_the_requests_of_a_pod(spec: Object, expected: dict[str, int]) -> None:
    assert wanted(**spec) == expected


def test_containers_that_do_not_say_are_assumed_to_use_a_little_when_scored() -> None:
    spec: Any = {"containers": [container("a"), container("b", cpu="1")], "initContainers": [container("i")]}
    requests = read_pod(pod(**spec)).requests
    assert (requests.scored_cpu, requests.scored_memory) == (1100, 2 * 200 * 1024**2)
    assert not requests.is_best_effort
    assert read_pod(pod()).requests.is_best_effort


def test_quantities_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        amounts_of({"cpu": "lots"})


REQUESTS = st.builds(
    PodRequests,
    st.dictionaries(st.sampled_from(["cpu", "memory", "mock.com/gpu"]), st.integers(1, 100)),
    st.integers(0, 100),
    st.integers(0, 100),
)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcdef"), REQUESTS)))
def test_an_account_equals_its_recount_after_any_steps(steps: list[tuple[bool, str, PodRequests]]) -> None:
    account, held = Account(), dict[str, PodRequests]()
    for enters, uid, requests in steps:
        if enters:
            account.enter(uid, requests)
            held[uid] = requests
        else:
            assert account.leave(uid) == (held.pop(uid, None) is not None)
        total: dict[str, int] = {}
        for one in held.values():
            for name, amount in one.amounts.items():
                total[name] = total.get(name, 0) + amount
        assert (account.requested, account.pods) == (total, len(held))
        assert account.scored_cpu == sum(one.scored_cpu for one in held.values())
        assert account.scored_memory == sum(one.scored_memory for one in held.values())
        assert account.copy().requested == account.requested
