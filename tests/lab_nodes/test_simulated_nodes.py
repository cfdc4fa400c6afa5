"""Simulated nodes: any number, from a count or a file, and pods that run without processes."""

import asyncio
from pathlib import Path

import pytest

from colocate.clock import ManualClock
from colocate.errors import UserError
from colocate.lab.api import bootstrap
from colocate.lab.api.deletion import DeleteOptions, delete
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.resources import NODES, PODS
from colocate.lab.api.store import ObjectStore
from colocate.lab.nodes.shape import from_file, generated
from colocate.lab.nodes.simulated import SimulatedNodes
from tests.support.waiting import until

REPO = Path(__file__).parents[2]


async def test_pods_run_on_simulated_nodes_and_go_when_deleted() -> None:
    clock = ManualClock()
    registry = ObjectRegistry(ObjectStore(), clock)
    bootstrap.fill(registry)
    nodes = SimulatedNodes(registry, clock, generated(30))
    nodes.register()
    task = asyncio.create_task(nodes.run())
    for n in range(60):
        container = {"name": "main", "image": "nginx"}
        spec = {
            "nodeName": f"node-{n % 30 + 1:04}",
            "containers": [container],
            "initContainers": [container | {"name": "i"}],
        }
        registry.create(PODS, "default", {"metadata": {"name": f"p{n}"}, "spec": spec})

    def phases() -> set[str]:
        return {stored.body["status"]["phase"] for stored in registry.store.items(PODS.storage)}

    await until(lambda: phases() == {"Running"}, "all pods to run")
    addresses = {stored.body["status"]["podIP"] for stored in registry.store.items(PODS.storage)}
    assert len(addresses) == 60
    delete(registry, PODS, "default", "p0", DeleteOptions())
    await until(lambda: registry.find(PODS, "default", "p0") is None, "the pod to go")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_namesake_of_a_deleted_pod_is_left_alone() -> None:
    clock = ManualClock()
    registry = ObjectRegistry(ObjectStore(), clock)
    bootstrap.fill(registry)
    nodes = SimulatedNodes(registry, clock, generated(1))
    nodes.register()
    task = asyncio.create_task(nodes.run())
    body = {
        "metadata": {"name": "p"},
        "spec": {"nodeName": "node-0001", "containers": [{"name": "m", "image": "i"}]},
    }
    registry.create(PODS, "default", body)
    await until(
        lambda: registry.get(PODS, "default", "p").body["status"]["phase"] == "Running", "the pod to run"
    )
    delete(registry, PODS, "default", "p", DeleteOptions())
    delete(registry, PODS, "default", "p", DeleteOptions(gracePeriodSeconds=0))
    second = registry.create(PODS, "default", body)
    await until(
        lambda: registry.get(PODS, "default", "p").body["status"]["phase"] == "Running", "its namesake to run"
    )
    assert registry.get(PODS, "default", "p").body["metadata"]["uid"] == second.body["metadata"]["uid"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_node_of_the_cluster_is_taken_over_as_it_is() -> None:
    clock = ManualClock()
    registry = ObjectRegistry(ObjectStore(), clock)
    bootstrap.fill(registry)
    for _ in range(2):
        SimulatedNodes(registry, clock, generated(3)).register()
    assert registry.store.count(NODES.storage) == 3


def test_the_example_file_is_read() -> None:
    shapes = from_file(REPO / "examples" / "nodes.yaml")
    assert len(shapes) > 3
    assert any(shape.taints for shape in shapes)
    assert any(shape.resources for shape in shapes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Expected `object`"),
        ("nodes: [{nam: a}]", "unknown field `nam`"),
        ("nodes: [{name: a}, {name: a}]", "two nodes named 'a'"),
        ("nodes: [{name: a, memory: lots}]", "a: 'lots' is not a quantity"),
        ("nodes: [", "expected the node content"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as refused:
        from_file(file)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("count", [-1, 5001])
def test_how_many_is_too_many(count: int) -> None:
    with pytest.raises(UserError, match="--nodes"):
        generated(count)
