"""What pods ask for, counted as the scheduler counts it."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from colocate.devices.requests import Marks, RequestingContainer, RequestingPod, Spec, Status, requested
from colocate.lab.scheduler import requests as scheduler
from colocate.model.pod import Resources

FAN, GPU = "example.com/fan", "example.com/gpu"


def asking(restart: str | None = None, **counts: int) -> RequestingContainer:
    names = {"fan": FAN, "gpu": GPU, "cpu": "cpu"}
    return RequestingContainer(
        Resources(requests={names[key]: str(count) for key, count in counts.items()}), restart
    )


def pod(*containers: RequestingContainer, init: tuple[RequestingContainer, ...] = ()) -> RequestingPod:
    return RequestingPod(Marks("p", "ns"), Spec("n1", containers, init))


def test_containers_add_up_and_only_extended_resources_count() -> None:
    assert requested(pod(asking(fan=1, cpu=4), asking(fan=2, gpu=1))) == {FAN: 3, GPU: 1}


def test_of_init_containers_the_greediest_counts_and_only_where_it_takes_more_than_all_others() -> None:
    assert requested(pod(asking(fan=2), init=(asking(fan=1), asking(fan=2)))) == {FAN: 2}
    assert requested(pod(asking(fan=2), init=(asking(fan=5), asking(gpu=1)))) == {FAN: 5, GPU: 1}


def test_a_sidecar_goes_on_beside_all_that_come_after_it() -> None:
    sidecar = asking("Always", fan=1)
    assert requested(pod(asking(fan=2), init=(sidecar, asking(fan=3)))) == {FAN: 4}
    assert requested(pod(asking(fan=2), init=(asking(fan=3), sidecar))) == {FAN: 3}


def test_a_limit_alone_is_a_request_and_so_is_the_overhead_of_a_runtime() -> None:
    limited = RequestingContainer(Resources(limits={FAN: "2"}))
    assert requested(RequestingPod(Marks("p"), Spec("n1", (limited,), overhead={FAN: 1}))) == {FAN: 3}


def test_a_pod_is_read_as_the_api_shows_it() -> None:
    text = (
        b'{"metadata":{"name":"p","namespace":"ns"},"spec":{"nodeName":"n1","containers":'
        b'[{"name":"c","resources":{"requests":{"example.com/fan":"2"}}}]},"status":{"phase":"Succeeded"}}'
    )
    found = msgspec.json.decode(text, type=RequestingPod)
    assert (found.key, found.spec.node_name, found.is_finished) == ("ns/p", "n1", True)
    assert requested(found) == {FAN: 2}
    assert not RequestingPod(Marks("p"), status=Status("Running")).is_finished


containers = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()).map(
        lambda one: asking("Always" if one[2] else None, fan=one[0], gpu=one[1])
    ),
    max_size=4,
)


@given(containers, containers)
def test_the_embedded_scheduler_counts_the_same(
    apps: list[RequestingContainer], inits: list[RequestingContainer]
) -> None:
    def translated(given: list[RequestingContainer]) -> list[scheduler.ScheduledContainer]:
        return [
            scheduler.ScheduledContainer(
                scheduler.RequestedResources(one.resources.requests), one.restart_policy
            )
            for one in given
        ]

    apps = [asking() if one.is_sidecar else one for one in apps]
    expected = scheduler.pod_requests(translated(apps), translated(inits)).amounts
    found = requested(pod(*apps, init=tuple(inits)))
    assert {name: count for name, count in found.items() if count} == expected
