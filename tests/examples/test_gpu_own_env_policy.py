"""examples/gpus/own-env-policy.yaml: which pods its admission policy refuses, also where they ask for no GPU."""

from typing import Any

import pytest
from tests.support.admission import AdmissionPolicy

POLICY = AdmissionPolicy("gpus/own-env-policy.yaml")
NAME = "NVIDIA_VISIBLE_DEVICES"
CONTAINER: dict[str, Any] = {"name": "main", "image": "x"}
SETS = "remove NVIDIA_VISIBLE_DEVICES from its env"
MOUNTS = "mount nothing below /var/run/nvidia-container-devices"


def with_env(*env: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**CONTAINER, "env": list(env), **more}


def refused(operation: str = "CREATE", **spec: Any) -> list[str]:
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [CONTAINER], **spec}}
    old = pod if operation == "UPDATE" else None
    return POLICY.refused(old, pod, {"username": "tenant"}, operation)


LIMITS = {"limits": {"colocate.dev/gpu-memory": "4"}}
SECRET = {"secretKeyRef": {"name": "s", "key": "k"}}


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": [with_env({"name": NAME, "value": "all"})]},
        {"containers": [with_env({"name": NAME, "value": "all"}, resources=LIMITS)]},
        {"containers": [CONTAINER, with_env({"name": "A", "value": "b"}, {"name": NAME, "value": "0"})]},
        {"containers": [with_env({"name": NAME})]},
        {"containers": [with_env({"name": NAME, "value": ""})]},
        {"containers": [with_env({"name": NAME, "value": "void "})]},
        {"containers": [with_env({"name": NAME, "valueFrom": SECRET})]},
        {"containers": [with_env({"name": NAME, "value": "void", "valueFrom": SECRET})]},
        {"initContainers": [with_env({"name": NAME, "value": "GPU-1"})]},
        {"ephemeralContainers": [with_env({"name": NAME, "value": "all"})]},
    ],
)
def test_no_container_chooses_its_gpus_by_its_env(spec: dict[str, Any]) -> None:
    [message] = refused("UPDATE" if "ephemeralContainers" in spec else "CREATE", **spec)
    assert SETS in message


CUDA = {"name": "CUDA_VERSION", "value": "12.0"}


@pytest.mark.parametrize("kind", ["containers", "initContainers", "ephemeralContainers"])
@pytest.mark.parametrize(
    "container",
    [
        with_env(CUDA),
        with_env({"name": "CUDA_VERSION", "valueFrom": SECRET}, {"name": "A", "value": "b"}),
        with_env(CUDA, resources={"limits": {"cpu": "1"}}),
        with_env(CUDA, resources={}),
        with_env(CUDA, resources={"limits": {"colocate.dev/gpu-memory": "0"}}),
    ],
)
def test_nor_by_looking_like_an_old_image_of_cuda(kind: str, container: dict[str, Any]) -> None:
    operation = "UPDATE" if kind == "ephemeralContainers" else "CREATE"
    [message] = refused(operation, **{kind: [container]})
    assert "CUDA_VERSION in its env gives it all of them" in message


@pytest.mark.parametrize("kind", ["containers", "initContainers", "ephemeralContainers"])
def test_nor_by_a_mount(kind: str) -> None:
    mount = {"name": "null", "mountPath": "/var/run/nvidia-container-devices/all"}
    operation = "UPDATE" if kind == "ephemeralContainers" else "CREATE"
    [message] = refused(operation, **{kind: [{**CONTAINER, "volumeMounts": [mount]}]})
    assert MOUNTS in message


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"containers": [with_env()]},
        {"containers": [with_env({"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"}, resources=LIMITS)]},
        {
            "containers": [
                with_env({"name": NAME, "value": "void"}),
                with_env({"name": NAME, "value": "none"}),
            ]
        },
        {"containers": [{**CONTAINER, "volumeMounts": [{"name": "v", "mountPath": "/data"}]}]},
        {"containers": [with_env(CUDA, resources=LIMITS)]},
        {"containers": [with_env(CUDA, {"name": NAME, "value": "void"})]},
    ],
)
def test_all_others_are_let_through(spec: dict[str, Any]) -> None:
    assert refused(**spec) == []


def test_a_pod_from_before_the_policy_can_be_debugged() -> None:
    """Its own containers are not judged again: nobody could change them."""
    old = {"containers": [with_env({"name": NAME, "value": "all"})]}
    assert refused("UPDATE", **old, ephemeralContainers=[CONTAINER]) == []


def test_every_way_to_a_container_is_judged_and_nothing_else() -> None:
    rules = POLICY.spec["matchConstraints"]["resourceRules"]
    assert {(name, each) for rule in rules for name in rule["resources"] for each in rule["operations"]} == {
        ("pods", "CREATE"),
        ("pods/ephemeralcontainers", "UPDATE"),
    }
    assert POLICY.spec["failurePolicy"] == "Fail"
    assert POLICY.binding["validationActions"] == ["Deny"]


def test_namespaces_can_be_exempted_by_a_label() -> None:
    expressions = POLICY.binding["matchResources"]["namespaceSelector"]["matchExpressions"]
    exempt = {each["key"]: each["values"] for each in expressions if each["operator"] == "NotIn"}
    assert exempt["colocate.dev/own-gpu-env"] == ["allowed"]
    assert "kube-system" in exempt["kubernetes.io/metadata.name"], "where our agent and the driver's pods are"
