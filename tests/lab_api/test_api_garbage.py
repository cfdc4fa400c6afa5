"""Objects without an owner are collected: with their owner, their namespace or their node."""

import pytest

from colocate.lab.api.controllers import LOST_NODE_SECONDS
from colocate.lab.api.deletion import delete
from colocate.lab.api.objects import name_of
from colocate.lab.api.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    NAMESPACES,
    NODES,
    PODS,
    REPLICA_SETS,
    SERVICE_ACCOUNTS,
)
from colocate.lab.api.status import StatusError

from .controlled import Cluster
from .samples import config_map, deployment, node, pod


async def test_what_a_deployment_made_goes_with_it(cluster: Cluster) -> None:
    cluster.create(DEPLOYMENTS, deployment("web"))
    await cluster.settle()
    cluster.delete(DEPLOYMENTS, "web")
    await cluster.settle()
    assert cluster.pods() == []
    assert cluster.store.items(REPLICA_SETS.storage) == []


async def test_in_the_foreground_the_owner_goes_last(cluster: Cluster) -> None:
    cluster.create(DEPLOYMENTS, deployment("web"))
    await cluster.settle()
    cluster.delete(DEPLOYMENTS, "web", propagationPolicy="Foreground")
    await cluster.settle(run=False)
    assert cluster.get(DEPLOYMENTS, "web")["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert len(cluster.pods()) == 3
    await cluster.settle()
    assert cluster.pods() == []
    with pytest.raises(StatusError):
        cluster.get(DEPLOYMENTS, "web")


async def test_orphans_stay(cluster: Cluster) -> None:
    cluster.create(DEPLOYMENTS, deployment("web"))
    await cluster.settle()
    cluster.delete(DEPLOYMENTS, "web", propagationPolicy="Orphan")
    await cluster.settle()
    (replica_set,) = cluster.store.items(REPLICA_SETS.storage)
    assert "ownerReferences" not in replica_set.body["metadata"]
    assert len(cluster.pods()) == 3
    with pytest.raises(StatusError):
        cluster.get(DEPLOYMENTS, "web")


async def test_an_object_stays_while_one_of_its_owners_does(cluster: Cluster) -> None:
    first, second = (cluster.create(CONFIG_MAPS, config_map(name)) for name in ("a", "b"))
    references = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": name_of(one), "uid": one["metadata"]["uid"]}
        for one in (first, second)
    ]
    owned = config_map("c") | {"metadata": {"name": "c", "ownerReferences": references}}
    cluster.create(CONFIG_MAPS, owned)
    cluster.delete(CONFIG_MAPS, "a")
    await cluster.settle()
    assert [one["name"] for one in cluster.get(CONFIG_MAPS, "c")["metadata"]["ownerReferences"]] == ["b"]
    cluster.delete(CONFIG_MAPS, "b")
    await cluster.settle()
    assert cluster.store.count(CONFIG_MAPS.storage) == 0


async def test_an_object_of_an_owner_that_never_was_is_collected(cluster: Cluster) -> None:
    missing = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u"}
    foreign = {"apiVersion": "example.com/v1", "kind": "Widget", "name": "x", "uid": "u"}
    for name, owner in (("a", missing), ("b", foreign)):
        cluster.create(CONFIG_MAPS, {"metadata": {"name": name, "ownerReferences": [owner]}})
    await cluster.settle()
    assert [stored.key.name for stored in cluster.store.items(CONFIG_MAPS.storage)] == ["b"]


async def test_a_namespace_is_emptied_before_it_goes(cluster: Cluster) -> None:
    cluster.create(NAMESPACES, {"metadata": {"name": "team"}}, "")
    await cluster.settle()
    assert cluster.get(SERVICE_ACCOUNTS, "default", "team")
    cluster.create(PODS, pod("p", nodeName="vm"), "team")
    cluster.create(CONFIG_MAPS, config_map("c"), "team")
    delete(cluster.registry, NAMESPACES, "", "team")
    await cluster.settle(run=False)
    assert cluster.get(NAMESPACES, "team", "")["status"]["phase"] == "Terminating"
    assert cluster.store.count(CONFIG_MAPS.storage, "team") == 0
    with pytest.raises(StatusError, match="because it is being terminated"):
        cluster.create(CONFIG_MAPS, config_map("d"), "team")
    await cluster.settle()
    with pytest.raises(StatusError, match="not found"):
        cluster.get(NAMESPACES, "team", "")
    assert cluster.pods() == []


async def test_pods_of_a_node_that_stays_away_are_collected(cluster: Cluster) -> None:
    cluster.create(PODS, pod("p", nodeName="vm"))
    await cluster.settle()
    delete(cluster.registry, NODES, "", "vm")
    await cluster.settle()
    await cluster.clock.advance(LOST_NODE_SECONDS - 1)
    await cluster.settle()
    assert len(cluster.pods()) == 1
    await cluster.clock.advance(1)
    await cluster.settle()
    assert cluster.pods() == []


async def test_pods_of_a_node_that_comes_back_stay(cluster: Cluster) -> None:
    cluster.create(PODS, pod("p", nodeName="vm"))
    delete(cluster.registry, NODES, "", "vm")
    await cluster.settle()
    cluster.create(NODES, node("vm"), "")
    await cluster.clock.advance(LOST_NODE_SECONDS)
    await cluster.settle()
    assert len(cluster.pods()) == 1
