"""This machine as a node: what its kubelet does is seen in the API, and what the API says is done."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from colocate.lab.api import bootstrap
from colocate.lab.api.changes import StoreKey
from colocate.lab.api.deletion import DeleteOptions, delete
from colocate.lab.api.objects import Object
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.resources import EVENTS, NODES, PODS
from colocate.lab.api.store import ObjectStore
from colocate.lab.nodes.heartbeat import synced, zeroed
from colocate.lab.nodes.machine import MachineNode
from colocate.lab.nodes.shape import LabNodeShape
from colocate.testing import TestNode, embedded_kubelet
from tests.support.plugins import FAN, Fans
from tests.support.waiting import until


class Cluster:
    """A registry with one node, whose kubelet is `node`."""

    def __init__(self, node: TestNode, registry: ObjectRegistry) -> None:
        self.node = node
        self.registry = registry

    def status(self) -> Object:
        status: Object = self.registry.get(NODES, "", "lab").body["status"]
        return status

    def pod(self, name: str) -> Object:
        return self.registry.get(PODS, "default", name).body

    def phase(self, name: str) -> str:
        return str(self.pod(name)["status"].get("phase"))

    def bind(self, name: str, count: int = 0, **spec: Any) -> None:
        limits = {FAN: str(count)} if count else {}
        container = {"name": "main", "image": "busybox", "resources": {"limits": limits}}
        body = {"metadata": {"name": name}, "spec": {"nodeName": "lab", "containers": [container], **spec}}
        self.registry.create(PODS, "default", body)

    def patch_away(self, resource: str) -> None:
        def change(body: Object) -> None:
            del body["status"]["capacity"][resource]

        self.registry.modify(NODES, "", "lab", change, "status")


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with embedded_kubelet() as node:
        store = ObjectStore()
        registry = ObjectRegistry(store, node.clock)
        bootstrap.fill(registry)
        machine = MachineNode(
            registry, node.clock, node.kubelet, LabNodeShape(name="lab", cpu="2", memory="1Gi")
        )
        await node.kubelet.restart()
        task = asyncio.create_task(machine.run())
        yield Cluster(node, registry)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_node_has_what_a_recorded_one_has(cluster: Cluster, recordings: Path) -> None:
    recorded = json.loads((recordings / "api/node.json").read_text())
    body = cluster.registry.get(NODES, "", "lab").body
    assert set(recorded["status"]) - {"images"} <= set(body["status"])
    assert set(recorded["metadata"]["labels"]) <= set(body["metadata"]["labels"])
    assert [one["type"] for one in body["status"]["conditions"]] == [
        one["type"] for one in recorded["status"]["conditions"]
    ]


async def test_a_node_that_was_there_before_has_the_boot_id_of_the_kubelet_that_takes_it_over(
    cluster: Cluster,
) -> None:
    kubelet = cluster.node.kubelet
    assert cluster.status()["nodeInfo"]["bootID"] == kubelet.paths.boot_id.read_text() == kubelet.boot_id
    kubelet.boot_id = "another"
    await kubelet.restart()
    assert cluster.status()["nodeInfo"]["bootID"] == kubelet.paths.boot_id.read_text() == "another"


async def test_devices_come_with_a_sync_and_capacity_goes_after_the_grace(cluster: Cluster) -> None:
    node = cluster.node
    group = await node.serve(Fans("fan-0", "fan-1"))
    await node.devices(FAN, 2)
    node.kubelet.sync_status()
    assert (cluster.status()["capacity"][FAN], cluster.status()["allocatable"][FAN]) == ("2", "2")
    await node.kill(group)
    await node.devices(FAN, 0)
    node.kubelet.sync_status()
    assert (cluster.status()["capacity"][FAN], cluster.status()["allocatable"][FAN]) == ("2", "0")
    await node.clock.advance(310)
    assert (cluster.status()["capacity"][FAN], cluster.status()["allocatable"][FAN]) == ("0", "0")


async def test_a_resource_patched_away_too_early_comes_back_and_later_stays_away(cluster: Cluster) -> None:
    node = cluster.node
    group = await node.serve(Fans("fan-0"))
    await node.devices(FAN, 1)
    node.kubelet.sync_status()
    await node.kill(group)
    await node.devices(FAN, 0)
    cluster.patch_away(FAN)
    await node.clock.advance(11)
    assert cluster.status()["capacity"][FAN] == "1", (
        "the kubelet puts it back before the five minutes are over"
    )
    await node.clock.advance(310)
    cluster.patch_away(FAN)
    await node.clock.advance(30)
    assert FAN not in cluster.status()["capacity"]
    assert FAN not in cluster.status()["allocatable"]


async def test_a_resource_patched_in_by_hand_stays_until_a_kubelet_finds_no_checkpoint(
    cluster: Cluster,
) -> None:
    def change(body: Object) -> None:
        body["status"]["capacity"]["example.com/hand"] = "7"

    cluster.registry.modify(NODES, "", "lab", change, "status")
    await cluster.node.clock.advance(11)
    assert cluster.status()["allocatable"]["example.com/hand"] == "7"
    await cluster.node.serve(Fans("fan-0"))
    await cluster.node.devices(FAN, 1)
    await cluster.node.kubelet.restart()
    assert cluster.status()["capacity"]["example.com/hand"] == "7"
    cluster.node.paths.checkpoint.unlink()
    await cluster.node.kubelet.restart()
    assert cluster.status()["capacity"]["example.com/hand"] == "0"
    assert cluster.status()["capacity"]["cpu"] == "2"


async def test_a_bound_pod_runs_and_a_deleted_one_leaves(cluster: Cluster) -> None:
    await cluster.node.serve(Fans("fan-0", "fan-1"))
    await cluster.node.devices(FAN, 2)
    cluster.bind("train", 2)
    await until(lambda: cluster.phase("train") == "Running", "the pod to run")
    status = cluster.pod("train")["status"]
    assert {one["type"]: one["status"] for one in status["conditions"]}["Ready"] == "True"
    assert status["containerStatuses"][0]["state"]["running"]
    delete(cluster.registry, PODS, "default", "train", DeleteOptions())
    await until(lambda: cluster.registry.find(PODS, "default", "train") is None, "the pod to go")
    assert not cluster.node.kubelet.records


async def test_a_pod_deleted_by_force_is_stopped_too_and_its_name_can_be_used_at_once(
    cluster: Cluster,
) -> None:
    cluster.bind("train")
    await until(lambda: cluster.phase("train") == "Running", "the pod to run")
    first = cluster.pod("train")["metadata"]["uid"]
    cluster.registry.store.remove(StoreKey(PODS.storage, "default", "train"))
    cluster.bind("train")
    await until(lambda: cluster.phase("train") == "Running", "its namesake to run")
    await until(lambda: first not in cluster.node.kubelet.records, "the first to be gone")
    assert cluster.registry.find(PODS, "default", "train") is not None


async def test_a_rejected_pod_looks_as_recorded(cluster: Cluster, recordings: Path) -> None:
    recorded = json.loads((recordings / "api/pod-admission-error.json").read_text())["status"]
    event = json.loads((recordings / "api/events-admission-error.json").read_text())["items"][0]
    await cluster.node.serve(Fans("fan-0"))
    await cluster.node.devices(FAN, 1)
    cluster.bind("too-much", 4)
    await until(lambda: cluster.phase("too-much") == "Failed", "the rejection")
    status = cluster.pod("too-much")["status"]
    assert set(status) == set(recorded) - {"observedGeneration"}
    words = recorded["message"].replace("test.com/colocation-memory", FAN)
    assert status["message"] == words.replace("400", "4").replace("32", "1")
    (told,) = (stored.body for stored in cluster.registry.store.items(EVENTS.storage))
    assert set(event) - {"metadata"} <= set(told) | {"eventTime"}
    assert told["reason"] == event["reason"]


def test_amounts_follow_the_kubelets_rules() -> None:
    capacity, allocatable = synced({"cpu": "2", "a/hand": "3", "a/dev": "9"}, {"a/dev": 4}, {"a/dev": 1})
    assert capacity == {"cpu": "2", "a/hand": "3", "a/dev": "4"}
    assert allocatable == {"cpu": "2", "a/hand": "3", "a/dev": "1"}
    assert zeroed(capacity) == {"cpu": "2", "a/hand": "0", "a/dev": "0"}
