"""The doctor on memory: what selling it builds upon, and what a kubelet keeps for the system."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from tests.cluster.serving import connect
from tests.doctor.examining import found, grant, only, patient
from tests.memory.nodes import Machine

from colocate.clock import ManualClock, SystemClock
from colocate.doctor.report import CheckVerdict, absent, good
from colocate.lab.api.resources import NODES
from colocate.lab.api.server import ApiServer
from colocate.memory.agent.control import REPORT
from colocate.memory.agent.report import MemoryReport, report
from colocate.memory.settings import Rung
from colocate.wire import control_socket as control
from colocate.wire import rpc


async def test_what_selling_memory_builds_upon_is_told_part_by_part(tmp_path: Path) -> None:
    results = (await found(patient(tmp_path), "memory"))["memory"]
    parts = [result.reason.partition(":")[0] for result in results]
    far = ["far nodes", "far by move_pages", "far by demotion"]
    assert parts == ["pods", "limits", "swap", "pressure", "pressure of pods", *far]
    assert all(result.remedy for result in results if result.verdict > CheckVerdict.GOOD)


async def test_every_rung_is_here_or_it_is_said_why_not(tmp_path: Path) -> None:
    results = (await found(patient(tmp_path), "memory ladder"))["memory ladder"]
    told = " ".join(result.reason for result in results)
    assert all(rung in told for rung in Rung)


async def test_a_kubelet_that_keeps_nothing_for_the_system_is_a_warning(
    server: ApiServer, tmp_path: Path
) -> None:
    grant(server, "ann", {"verbs": ["get"], "apiGroups": [""], "resources": ["nodes"]})
    memory = {"memory": "16Gi"}
    for allocatable, verdict in (("15Gi", CheckVerdict.GOOD), ("16Gi", CheckVerdict.WARN)):
        name = f"worker-{allocatable.lower()}"
        status = {"capacity": memory, "allocatable": {"memory": allocatable}}
        server.registry.create(NODES, "", {"metadata": {"name": name}, "status": status})
        async with connect(server.url, SystemClock(), token="ann-token") as client:
            asked = msgspec.structs.replace(patient(tmp_path, client), node=name)
            results = (await found(asked, "memory reserves"))["memory reserves"]
        assert max(results, key=lambda one: one.verdict is CheckVerdict.WARN).verdict is verdict
        assert any("cannot ask for the configuration" in result.reason for result in results)


async def test_of_a_machine_that_is_no_node_no_reserves_are_asked_for(
    server: ApiServer, tmp_path: Path
) -> None:
    async with connect(server.url, SystemClock()) as client:
        result = await only(patient(tmp_path, client), "memory reserves")
    assert result == absent("the cluster has no node worker, so nothing is reserved on it")


def reported(**more: object) -> MemoryReport:
    """What an agent says of a node on which nothing is sold yet."""
    machine = Machine()
    facts = machine.facts()
    made = report(machine.turn(), facts, machine.settings, (), 0.0, dry_run=False)
    return msgspec.structs.replace(made, **more)


@asynccontextmanager
async def agent(root: Path, said: MemoryReport) -> AsyncIterator[None]:
    """An agent's control socket, that tells this report."""
    service = rpc.Service({REPORT: control.answering(lambda _: said)})
    async with control.serving(root / "agent.sock", service):
        yield


async def test_namespaces_in_which_the_agent_may_evict_nobody_are_named_with_the_command_that_allows_it(
    tmp_path: Path,
) -> None:
    async with agent(tmp_path, reported(without_eviction=("batch", "tenant"))):
        results = (await found(patient(tmp_path), "memory evictions"))["memory evictions"]
    assert [result.verdict for result in results] == [CheckVerdict.WARN, CheckVerdict.WARN]
    assert "to pods of batch but may not evict them" in results[0].reason
    assert "kubectl -n tenant create rolebinding colocate-memory-evictor" in results[1].remedy


async def test_an_agent_that_may_evict_wherever_it_sells_is_well_and_so_is_none(tmp_path: Path) -> None:
    async with agent(tmp_path, reported()):
        result = await only(patient(tmp_path), "memory evictions")
    assert result == good("the agent may evict in every namespace with blocks, according to the API server")
    result = await only(patient(tmp_path), "memory evictions")
    assert result.verdict is CheckVerdict.ABSENT
    assert "no agent runs here" in result.reason


async def test_memory_that_is_switched_off_is_not_taken_for_a_stale_resource(
    server: ApiServer, tmp_path: Path
) -> None:
    counts = {"capacity": {"colocate.dev/colocation-memory": "36"}}
    status = {**counts, "allocatable": {"colocate.dev/colocation-memory": "0"}}
    server.registry.create(NODES, "", {"metadata": {"name": "worker"}, "status": status})
    said = reported(node="worker", resource="colocate.dev/colocation-memory", off=True)
    async with connect(server.url, SystemClock()) as client:
        who = patient(tmp_path, client, ManualClock())
        async with agent(tmp_path, said):
            results = (await found(who, "extended resources"))["extended resources"]
        assert results[0].verdict is CheckVerdict.ABSENT
        assert "memory is switched off; 'colocate memory on' offers it again" in results[0].reason
        assert not any("resource remove" in result.remedy for result in results)
        async with agent(tmp_path, msgspec.structs.replace(said, off=False)):
            [result] = (await found(who, "extended resources"))["extended resources"]
        assert "resource remove" in result.remedy
