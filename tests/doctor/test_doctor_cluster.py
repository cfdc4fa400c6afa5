"""The doctor on the cluster: whether it answers, what an identity may do there, and how the node is."""

from pathlib import Path
from typing import Any

import pytest
from tests.cluster.serving import connect
from tests.doctor.examining import NOWHERE, found, grant, only, patient
from tests.support.rights import apply

from colocate.clock import ManualClock, SystemClock
from colocate.doctor.check import DoctorSection
from colocate.doctor.examination import chosen, examine
from colocate.doctor.report import CheckVerdict
from colocate.lab.api.resources import NODES
from colocate.lab.api.server import ApiServer


async def test_an_administrator_on_a_ready_node_has_nothing_to_complain_of(
    server: ApiServer, tmp_path: Path
) -> None:
    ready = {"type": "Ready", "status": "True"}
    server.registry.create(NODES, "", {"metadata": {"name": "worker"}, "status": {"conditions": [ready]}})
    async with connect(server.url, server.clock) as client:
        results = await found(patient(tmp_path, client), "api server", "node", "permissions")
    assert {r.verdict for all in results.values() for r in all} == {CheckVerdict.GOOD}
    [permissions] = results["permissions"]
    assert permissions.reason.startswith(
        "kubernetes-admin may do all that these need: colocate resource list"
    )
    assert "--act taints" in permissions.reason


async def test_what_an_identity_may_not_is_told_by_what_needs_it(server: ApiServer, tmp_path: Path) -> None:
    grant(server, "ann", {"verbs": ["get", "list"], "apiGroups": [""], "resources": ["nodes", "pods"]})
    async with connect(server.url, SystemClock(), token="ann-token") as client:
        *refused, allowed = (await found(patient(tmp_path, client), "permissions"))["permissions"]
    assert [result.reason for result in refused] == [
        "colocate resource advertise and remove: not possible as ann, who may not patch nodes/status",
        "colocate scheduler serve: not possible as ann, who may not watch nodes, watch pods",
        "colocate scheduler serve --act taints: not possible as ann, who may not patch nodes, "
        "get leases.coordination.k8s.io in kube-system, update leases.coordination.k8s.io in kube-system",
        "the agent that offers memory: not possible as ann, who may not watch nodes, watch pods, create events, "
        "patch events",
        "the agent that shares GPUs: not possible as ann, who may not watch nodes, watch pods, patch nodes/status, "
        "create events, patch events",
    ]
    assert "kubectl create clusterrole NAME --verb=patch --resource=nodes/status;" in refused[0].remedy
    assert (
        "kubectl -n kube-system create role NAME --verb=get,update --resource=leases.coordination.k8s.io;"
        in refused[2].remedy
    )
    assert allowed.reason.endswith(": colocate resource list, colocate checkpoint diff")


async def test_the_roles_that_are_shipped_suffice_for_the_scheduler(
    server: ApiServer, tmp_path: Path
) -> None:
    apply(server, "scheduler/rbac.yaml", "scheduler/taints-rbac.yaml")
    async with connect(server.url, SystemClock(), token="account-token") as client:
        *_, allowed = (await found(patient(tmp_path, client), "permissions"))["permissions"]
    assert allowed.reason.endswith("colocate scheduler serve, colocate scheduler serve --act taints")


@pytest.mark.parametrize(
    ("status", "spec", "verdict", "words"),
    [
        ([("Ready", "False")], {}, CheckVerdict.BAD, "is not Ready"),
        ([], {}, CheckVerdict.BAD, "is not Ready"),
        ([("Ready", "True"), ("MemoryPressure", "True")], {}, CheckVerdict.WARN, "MemoryPressure"),
        ([("Ready", "True")], {"unschedulable": True}, CheckVerdict.WARN, "cordoned"),
    ],
)
async def test_a_node_that_is_not_well(
    server: ApiServer,
    tmp_path: Path,
    status: list[tuple[str, str]],
    spec: dict[str, Any],
    verdict: CheckVerdict,
    words: str,
) -> None:
    conditions = [{"type": type, "status": value} for type, value in status]
    server.registry.create(
        NODES, "", {"metadata": {"name": "worker"}, "spec": spec, "status": {"conditions": conditions}}
    )
    async with connect(server.url, SystemClock()) as client:
        result = await only(patient(tmp_path, client), "node")
    assert result.verdict is verdict
    assert words in result.reason


async def test_a_machine_that_is_no_node_is_told_how_to_name_it(server: ApiServer, tmp_path: Path) -> None:
    async with connect(server.url, SystemClock()) as client:
        result = await only(patient(tmp_path, client), "node")
    assert result.verdict is CheckVerdict.WARN
    assert "--node" in result.remedy


async def test_a_server_that_does_not_take_the_token_is_bad(server: ApiServer, tmp_path: Path) -> None:
    async with connect(server.url, SystemClock(), token="old") as client:
        result = await only(patient(tmp_path, client), "api server")
    assert result.verdict is CheckVerdict.BAD


@pytest.mark.parametrize(
    ("apart", "said"),
    [
        (20, []),
        (-90, ["its clock is +90 s from this machine's"]),
        (90, ["its clock is -90 s from this machine's"]),
    ],
)
async def test_a_server_whose_clock_shows_another_time_is_told(
    server: ApiServer, tmp_path: Path, apart: float, said: list[str]
) -> None:
    async with connect(server.url, ManualClock(server.clock.time() + apart)) as client:
        answers, *rest = (await found(patient(tmp_path, client), "api server"))["api server"]
    assert answers.verdict is CheckVerdict.GOOD
    assert [result.reason for result in rest if result.verdict is CheckVerdict.WARN] == said


async def test_without_a_cluster_that_is_said_once(tmp_path: Path) -> None:
    results = [e async for e in examine(patient(tmp_path), chosen()) if e.section is DoctorSection.CLUSTER]
    assert [(e.check, e.results[0].reason) for e in results] == [("presence", NOWHERE)]
