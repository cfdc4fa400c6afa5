"""The doctor on taints that were left behind: it says whose they are, or how to remove them."""

from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.doctor import examining_load
from tests.doctor.examining import only

from colocate.clock import Clock, SystemClock
from colocate.cluster.client import Client
from colocate.cluster.lease import LeaseHolder, LeaseSettings
from colocate.cluster.resources import LEASES
from colocate.doctor.check import Patient, Scheduling
from colocate.doctor.report import CheckVerdict
from colocate.kubelet import KubeletPaths
from colocate.scheduler.loop.taints import REMOVAL, with_level
from colocate.scheduler.settings import Act, SchedulerConfig

LEASE = LeaseSettings(namespace="kube-system", name="colocate-load-taints", identity="writer")


def cluster_with(*levels: int) -> AbstractAsyncContextManager[Client]:
    return examining_load.cluster_with(
        {"metadata": {"name": f"n{number}"}, "spec": {"taints": with_level([], level)}}
        for number, level in enumerate(levels)
    )


class Apart(SystemClock):
    """A machine whose clock is some seconds from that of others."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def time(self) -> float:
        return super().time() + self._seconds


def asked(client: Client | str, *act: Act, clock: Clock | None = None) -> Patient:
    scheduling = Scheduling(SchedulerConfig(act=act))
    nowhere = Path("/nowhere")
    return Patient(
        KubeletPaths(nowhere), nowhere, "worker", clock or SystemClock(), client, scheduling=scheduling
    )


async def test_a_cluster_without_taints_is_well() -> None:
    async with cluster_with(0, 0) as client:
        found = await only(asked(client, Act.EXTENDER), "taints")
    assert found.verdict is CheckVerdict.GOOD


@pytest.mark.parametrize("act", [(Act.EXTENDER,), (Act.TAINTS,)])
async def test_taints_that_nobody_writes_are_told_with_the_command_that_removes_them(
    act: tuple[Act, ...],
) -> None:
    async with cluster_with(4, 0, 2) as client:
        found = await only(asked(client, *act), "taints")
        assert found.verdict is CheckVerdict.WARN
        assert "on 2 nodes, such as" in found.reason
        assert found.remedy.endswith(REMOVAL)
        dead = {
            "holderIdentity": "dead",
            "leaseDurationSeconds": 1,
            "renewTime": "2026-01-01T00:00:00.000000Z",
        }
        body = {"metadata": {"name": LEASE.name, "namespace": LEASE.namespace}, "spec": dead}
        await client.create(LEASES, body, LEASE.namespace)
        assert await only(asked(client, *act), "taints") == found


async def test_taints_that_somebody_writes_are_well_whoever_asks() -> None:
    async with cluster_with(4, 0) as client, LeaseHolder(client, LEASE, SystemClock()).running() as holder:
        await holder.changed.beyond(0)
        found = await only(asked(client, Act.EXTENDER), "taints")
    assert found.verdict is CheckVerdict.GOOD
    assert "written by writer" in found.reason


@pytest.mark.parametrize("seconds", [-3600, 35])
async def test_so_they_are_if_the_clock_of_who_asks_is_another(seconds: float) -> None:
    async with cluster_with(4, 0) as client, LeaseHolder(client, LEASE, SystemClock()).running() as holder:
        await holder.changed.beyond(0)
        found = await only(asked(client, Act.EXTENDER, clock=Apart(seconds)), "taints")
    assert found.verdict is CheckVerdict.GOOD
    assert "written by writer" in found.reason


async def test_a_killed_writer_writes_no_more_if_the_clock_of_who_asks_is_behind() -> None:
    async with cluster_with(4, 0) as client:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        dead = {"holderIdentity": "dead", "leaseDurationSeconds": 2, "renewTime": now}
        body = {"metadata": {"name": LEASE.name, "namespace": LEASE.namespace}, "spec": dead}
        await client.create(LEASES, body, LEASE.namespace)
        found = await only(asked(client, Act.EXTENDER, clock=Apart(-3600)), "taints")
    assert found.verdict is CheckVerdict.WARN
    assert "no process writes them" in found.reason


async def test_without_the_cluster_that_is_told() -> None:
    found = await only(asked("nowhere", Act.TAINTS), "taints")
    assert "--kubeconfig" in found.remedy
