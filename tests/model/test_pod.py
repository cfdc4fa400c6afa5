"""What is read of pods as the API gives them."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.model.pod import Pod, QosClass, peak, qos_class


def test_recorded_pods_are_read_with_their_devices_and_class(recordings: Path) -> None:
    for item in json.loads((recordings / "api/pod-list.json").read_text())["items"]:
        pod = msgspec.convert(item, Pod)
        assert qos_class(pod) == item["status"]["qosClass"], pod.key


def test_containers_come_with_init_containers_first(recordings: Path) -> None:
    pod = msgspec.json.decode((recordings / "api/pod-running.json").read_bytes(), type=Pod)
    assert [container.name for container in pod.containers] == ["warm", "train", "eval"]
    assert pod.containers[1].devices() == {"mock.com/gpu": 2, "test.com/colocation-memory": 5}


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({}, QosClass.BEST_EFFORT),
        ({"limits": {"mock/gpu": "1"}}, QosClass.BEST_EFFORT),
        ({"requests": {"cpu": "1"}}, QosClass.BURSTABLE),
        ({"limits": {"cpu": "1"}}, QosClass.BURSTABLE),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, QosClass.GUARANTEED),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m"}}, QosClass.GUARANTEED),
        (
            {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Mi"}},
            QosClass.BURSTABLE,
        ),
    ],
)
def test_qos_class(resources: dict[str, object], expected: QosClass) -> None:
    spec = {"containers": [{"name": "main", "resources": resources}]}
    assert qos_class(msgspec.convert({"metadata": {"name": "p"}, "spec": spec}, Pod)) == expected


@given(st.lists(st.integers(0, 9)), st.lists(st.tuples(st.integers(0, 9), st.booleans())))
def test_the_peak_is_the_most_of_all_moments_of_a_pods_life(
    running: list[int], init: list[tuple[int, bool]]
) -> None:
    def at(step: int) -> int:
        """While the init container at that place runs; all before it that are no sidecars have ended."""
        beside = sum(amount for amount, is_sidecar in init[:step] if is_sidecar)
        return beside + (init[step][0] if step < len(init) else sum(running))

    assert peak(running, init) == max(at(step) for step in range(len(init) + 1))
