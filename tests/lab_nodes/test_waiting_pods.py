"""A cluster as `colocate lab` makes one: its schedulers, the name of its machine, and pods that ask for neither."""

from pathlib import Path

import pytest

from colocate.clock import ManualClock
from colocate.errors import UserError
from colocate.lab.api.objects import Object, at
from colocate.lab.api.resources import EVENTS, NODES, PODS
from colocate.lab.cluster import MACHINE, LabCluster
from colocate.lab.nodes.shape import generated
from colocate.lab.nodes.waiting_pods import PATIENCE
from colocate.lab.scheduler.configuration import Configuration, Profile
from tests.support.waiting import until


def add_pod(cluster: LabCluster, name: str, **spec: str) -> None:
    body: Object = {
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "any"}], **spec},
    }
    cluster.registry.create(PODS, "default", body)


def node_of(cluster: LabCluster, name: str) -> str:
    found = cluster.registry.find(PODS, "default", name)
    assert found is not None
    return str(at(found.body, "spec", "nodeName") or "")


def events(cluster: LabCluster, name: str) -> dict[str, str]:
    bodies = [stored.body for stored in cluster.store.items(EVENTS.storage)]
    return {body["reason"]: body["message"] for body in bodies if body["involvedObject"]["name"] == name}


async def test_a_second_scheduler_leaves_ordinary_pods_to_the_first(tmp_path: Path) -> None:
    cluster = LabCluster(tmp_path, nodes=generated(1), scheduling=Configuration((Profile("second"),)))
    async with cluster.running():
        add_pod(cluster, "ordinary")
        add_pod(cluster, "special", schedulerName="second")
        await until(lambda: all(node_of(cluster, name) for name in ("ordinary", "special")), "both placed")


async def test_a_configuration_with_the_default_name_takes_its_place(tmp_path: Path) -> None:
    cluster = LabCluster(
        tmp_path,
        nodes=generated(1),
        scheduling=Configuration((Profile("default-scheduler"), Profile("second"))),
    )
    async with cluster.running():
        add_pod(cluster, "ordinary")
        await until(lambda: node_of(cluster, "ordinary") != "", "placed")
        assert list(events(cluster, "ordinary")) == ["Scheduled"], "and by one scheduler alone"


async def test_a_pod_for_a_node_or_scheduler_that_is_not_there_is_told_so(tmp_path: Path) -> None:
    clock = ManualClock()
    cluster = LabCluster(tmp_path, clock=clock)
    async with cluster.running():
        add_pod(cluster, "seed", nodeName="cxl-server")
        add_pod(cluster, "stranger", schedulerName="mem-real-usage-scheduler")
        for _ in range(3):
            await clock.advance(PATIENCE)
        await until(lambda: all(events(cluster, name) for name in ("seed", "stranger")), "the events")
        assert events(cluster, "seed") == {
            "NoSuchNode": "spec.nodeName is cxl-server, and there is no such node here (this-machine): remove it, "
            "or start the lab with --node-name cxl-server, which gives this machine that name"
        }
        assert "the lab runs default-scheduler" in events(cluster, "stranger")["NoSuchScheduler"]
        for _ in range(3):
            await clock.advance(PATIENCE)
        assert len(cluster.store.items(EVENTS.storage)) >= 2


async def test_this_machine_is_called_as_one_likes(tmp_path: Path) -> None:
    cluster = LabCluster(tmp_path, node_name="cxl-server")
    async with cluster.running():
        await until(lambda: cluster.registry.find(NODES, "", "cxl-server") is not None, "the node")
        assert cluster.registry.find(NODES, "", MACHINE) is None


@pytest.mark.parametrize(
    ("name", "why"), [("Upper", "cannot name a node"), ("node-0001", "a simulated node cannot be called")]
)
def test_a_name_that_cannot_be_is_refused(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        LabCluster(tmp_path, nodes=generated(1), node_name=name)
