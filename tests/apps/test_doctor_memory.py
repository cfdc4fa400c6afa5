"""The doctor on memory: what selling it builds upon, and what a kubelet keeps for the system."""

from pathlib import Path

import msgspec
from tests.apps.examining import found, grant, only, patient
from tests.cluster.serving import connect

from colocate.apps.doctor.report import Verdict, good
from colocate.clock import SystemClock
from colocate.lab.api.resources import NODES
from colocate.lab.api.server import ApiServer
from colocate.memory.rung import Rung


async def test_what_selling_memory_builds_upon_is_told_part_by_part(tmp_path: Path) -> None:
    results = (await found(patient(tmp_path), "memory"))["memory"]
    parts = [result.reason.partition(":")[0] for result in results]
    far = ["far nodes", "far by move_pages", "far by demotion"]
    assert parts == ["pods", "limits", "swap", "pressure", "pressure of pods", *far]
    assert all(result.remedy for result in results if result.verdict is not Verdict.GOOD)


async def test_every_rung_is_here_or_it_is_said_why_not(tmp_path: Path) -> None:
    results = (await found(patient(tmp_path), "memory ladder"))["memory ladder"]
    told = " ".join(result.reason for result in results)
    assert all(rung in told for rung in Rung)


async def test_a_kubelet_that_keeps_nothing_for_the_system_is_a_warning(
    server: ApiServer, tmp_path: Path
) -> None:
    grant(server, "ann", {"verbs": ["get"], "apiGroups": [""], "resources": ["nodes"]})
    memory = {"memory": "16Gi"}
    for allocatable, verdict in (("15Gi", Verdict.GOOD), ("16Gi", Verdict.WARN)):
        name = f"worker-{allocatable.lower()}"
        status = {"capacity": memory, "allocatable": {"memory": allocatable}}
        server.registry.create(NODES, "", {"metadata": {"name": name}, "status": status})
        async with connect(server.url, SystemClock(), token="ann-token") as client:
            asked = msgspec.structs.replace(patient(tmp_path, client), node=name)
            results = (await found(asked, "memory reserves"))["memory reserves"]
        assert max(results, key=lambda one: one.verdict is Verdict.WARN).verdict is verdict
        assert any("cannot be asked for" in result.reason for result in results)


async def test_of_a_machine_that_is_no_node_no_reserves_are_asked_for(
    server: ApiServer, tmp_path: Path
) -> None:
    async with connect(server.url, SystemClock()) as client:
        result = await only(patient(tmp_path, client), "memory reserves")
    assert result == good("the cluster knows no node worker, so nothing is sold of one")
