"""The extender at work: an embedded cluster's scheduler asks it over HTTP, and pods go where the judge says."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from colocate.clock import ManualClock
from colocate.lab.api.certificates import Authority
from colocate.lab.api.objects import at
from colocate.lab.api.resources import PODS
from colocate.lab.api.store import ObjectStore
from colocate.lab.cluster import MACHINE, LabCluster
from colocate.lab.nodes.shape import generated
from colocate.lab.scheduler import configuration
from colocate.scheduler.kube import configuration as kube_config
from colocate.scheduler.kube.configuration import KubeProfile, TlsFiles, WantedConfiguration
from colocate.scheduler.settings import ServerTls
from tests.lab_scheduler.conftest import scheduling
from tests.lab_scheduler.lab import Lab, pod
from tests.scheduler.asking import SteeredJudge, asking, server
from tests.support.waiting import until

NAME = "mem-real-usage-scheduler"


@pytest.fixture
def lab() -> Lab:
    """Three nodes with equal requests."""
    lab = Lab(ManualClock())
    for name in ("n1", "n2", "n3"):
        lab.add_node(name)
    return lab


def configured(url: str, **wanted: Any) -> configuration.Configuration:
    """By what `colocate scheduler kube-config` prints."""
    return configuration.read(
        kube_config.render(WantedConfiguration(url=url, profiles=(KubeProfile(NAME),), **wanted))
    )


def add_pods(lab: Lab, count: int) -> None:
    for number in range(count):
        lab.add_pod(f"p{number}", {"cpu": "50m", "memory": "100Mi"}, schedulerName=NAME)


async def test_a_hot_node_loses_though_it_looks_empty(lab: Lab) -> None:
    for name in ("n1", "n3"):
        lab.add_pod(f"filler-{name}", {"cpu": "3", "memory": "12Gi"}, nodeName=name)
    add_pods(lab, 6)
    judge = SteeredJudge(n1=90, n2=10, n3=90)
    async with asking(judge) as ask, scheduling(lab, configured(ask.listening.url)):
        pass
    placed = Counter(node for pod, node in lab.placed().items() if pod.startswith("p"))
    assert placed == {"n1": 3, "n3": 3}
    assert len(judge.asked) == 6


@pytest.mark.parametrize("names_only", [True, False])
async def test_what_the_judge_refuses_is_told_in_the_pods_events(lab: Lab, names_only: bool) -> None:
    judge = SteeredJudge()
    judge.hot = dict.fromkeys(("n1", "n2", "n3"), "its memory would be at 97 %")
    add_pods(lab, 1)
    async with asking(judge) as ask:
        found = configured(ask.listening.url, filter=True)
        if not names_only:
            found = configuration.read(
                kube_config.render(
                    WantedConfiguration(url=ask.listening.url, profiles=(KubeProfile(NAME),), filter=True)
                ).replace("nodeCacheCapable: true", "nodeCacheCapable: false")
            )
        async with scheduling(lab, found) as scheduler:
            assert "3 its memory would be at 97 %" in lab.why("p0")
            judge.hot.pop("n2")
            lab.change_node("n1", unschedulable=True)
            lab.change_node("n1", unschedulable=False)
            await lab.clock.advance(1)
            await scheduler.settled()
    assert lab.placed() == {"p0": "n2"}


async def test_pods_are_scheduled_all_the_same_while_the_extender_fails_or_is_away(lab: Lab) -> None:
    judge = SteeredJudge()

    def fail() -> None:
        raise RuntimeError

    judge.before = fail
    async with asking(judge) as ask:
        found = configured(ask.listening.url, filter=True)
        add_pods(lab, 3)
        async with scheduling(lab, found):
            pass
        assert len(lab.placed()) == 3
    lab.add_pod("later", schedulerName=NAME)
    async with scheduling(lab, found):
        pass
    assert len(lab.placed()) == 4


async def test_over_https_with_certificates_on_both_sides(lab: Lab, tmp_path: Path) -> None:
    authority = Authority.of(ObjectStore())
    for name, pair in (("server", authority.server("extender")), ("client", authority.client("scheduler"))):
        (tmp_path / f"{name}.crt").write_bytes(pair.certificate)
        (tmp_path / f"{name}.key").write_bytes(pair.key)
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    tls = ServerTls(
        certificate=tmp_path / "server.crt",
        key=tmp_path / "server.key",
        client_authority=tmp_path / "ca.crt",
        client_names=("scheduler",),
    )
    files = TlsFiles(f"{tmp_path}/ca.crt", f"{tmp_path}/client.crt", f"{tmp_path}/client.key")
    add_pods(lab, 4)
    async with (
        asking(SteeredJudge(n3=100), server(tls=tls)) as ask,
        scheduling(lab, configured(ask.listening.url, tls=files)),
    ):
        pass
    assert Counter(lab.placed().values()) == {"n3": 4}


async def test_in_a_whole_embedded_cluster(tmp_path: Path) -> None:
    judge = SteeredJudge(**{"node-0002": 100})
    async with asking(judge) as ask:
        scheduling_ = configured(ask.listening.url)
        cluster = LabCluster(tmp_path, nodes=generated(3), scheduling=scheduling_)
        async with cluster.running():
            for number in range(10):
                cluster.registry.create(
                    PODS, "default", pod(f"p{number}", {"cpu": "50m"}, schedulerName=NAME)
                )

            def nodes() -> list[str | None]:
                bodies = [stored.body for stored in cluster.store.items(PODS.storage)]
                return [at(body, "spec", "nodeName") for body in bodies]

            await until(lambda: all(nodes()), "a node for every pod")
            assert set(nodes()) == {"node-0002"}
    assert {name for asked in judge.asked for name in asked.names} == {
        *("node-0001", "node-0002", "node-0003"),
        MACHINE,
    }
