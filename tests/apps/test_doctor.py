"""The doctor: what is well, what is not, and what to do about it, on a node and in a cluster."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tests.cluster.serving import connect, new_server
from tests.support.plugins import FAN, Fans

from colocate.apps.doctor.check import CHECKS, Check, Patient, Section, check
from colocate.apps.doctor.examination import PATIENCE, chosen, examine
from colocate.apps.doctor.report import Examined, Result, Verdict, good, warn
from colocate.apps.this_node import this_node
from colocate.clock import Clock, ManualClock, SystemClock
from colocate.cluster.client import Client
from colocate.errors import UserError
from colocate.kubelet import KubeletPaths
from colocate.kubelet.checkpoint import render
from colocate.lab.api.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, NODES, ROLE_BINDINGS, ROLES
from colocate.lab.api.server import ApiServer
from colocate.lab.api.users import known
from colocate.memory.rung import Rung
from colocate.model.checkpoint import Checkpoint, Entry
from colocate.testing import TestNode
from colocate.wire import methods
from colocate.wire.rpc import Service, serve, stop_server

NOWHERE = "no cluster here"


def patient(root: Path, cluster: Client | str = NOWHERE, clock: Clock | None = None) -> Patient:
    return Patient(KubeletPaths(root), root / "agent.sock", "worker", clock or SystemClock(), cluster)


async def found(who: Patient, *names: str) -> dict[str, tuple[Result, ...]]:
    return {e.check: e.results async for e in examine(who, chosen(names))}


async def only(who: Patient, name: str) -> Result:
    [result] = (await found(who, name))[name]
    return result


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    account = known("system:serviceaccount:kube-system:colocate-scheduler")
    running = new_server(ManualClock(), tokens={"ann-token": known("ann"), "account-token": account})
    await running.start(tls=False)
    yield running
    await running.stop()


def grant(server: ApiServer, user: str, *rules: dict[str, Any]) -> None:
    server.registry.create(CLUSTER_ROLES, "", {"metadata": {"name": user}, "rules": list(rules)})
    binding = {
        "metadata": {"name": user},
        "roleRef": {"kind": "ClusterRole", "name": user},
        "subjects": [{"kind": "User", "name": user}],
    }
    server.registry.create(CLUSTER_ROLE_BINDINGS, "", binding)


# --- the kubelet ---------------------------------------------------------------------------------


async def test_a_healthy_node_has_nothing_to_complain_of(node: TestNode) -> None:
    await node.serve(Fans("fan-0"))
    await node.devices(FAN, 1)
    await node.run_pod({FAN: 1})
    results = await found(
        patient(node.paths.root), "folders", "registration", "device plugins", "podresources"
    )
    assert {r.verdict for all in results.values() for r in all} == {Verdict.GOOD}
    assert "v1beta1" in results["registration"][0].reason
    assert results["device plugins"][0].reason.startswith("1 of 1 answer")
    assert results["podresources"] == (good("the kubelet knows 1 pods; 1 hold devices"),)


async def test_asking_for_registration_registers_nothing(node: TestNode) -> None:
    before = node.kubelet.sync_status()
    await only(patient(node.paths.root), "registration")
    assert node.kubelet.sync_status() == before


async def test_a_stopped_kubelet_is_told_apart_from_one_that_was_never_there(
    node: TestNode, tmp_path: Path
) -> None:
    await node.kubelet.stop()
    stopped = await only(patient(node.paths.root), "registration")
    assert stopped.verdict is Verdict.BAD
    assert "nobody listens on" in stopped.reason
    await node.kubelet.start()
    never = await found(patient(tmp_path / "kubelet"))
    assert never["presence"][0].verdict is Verdict.BAD
    assert not never.keys() & {"folders", "registration", "device plugins"}


async def test_a_kubelet_that_refuses_podresources_is_a_warning_with_its_words(node: TestNode) -> None:
    node.kubelet.faults.podresources_refusal = "too many requests"
    result = await only(patient(node.paths.root), "podresources")
    assert result.verdict is Verdict.WARN
    assert "too many requests" in result.reason


async def test_sockets_that_nobody_serves_are_named_with_the_way_to_be_rid_of_them(node: TestNode) -> None:
    left = node.paths.device_plugins / "gone.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(left))
    [result] = (await found(patient(node.paths.root), "device plugins"))["device plugins"]
    assert result.verdict is Verdict.WARN
    assert result.remedy.endswith(f"rm {left}")


async def test_a_plugin_that_hangs_is_bad_because_it_stalls_every_pod(node: TestNode) -> None:
    asked = asyncio.Event()

    async def hang(_: object) -> object:
        asked.set()
        return await asyncio.Event().wait()

    server = await serve(node.paths.device_plugins / "slow.sock", Service({methods.OPTIONS: hang}))
    clock = ManualClock()
    looking = asyncio.create_task(only(patient(node.paths.root, clock=clock), "device plugins"))
    await asked.wait()
    await clock.advance(5)
    result = await looking
    assert (result.verdict, result.remedy) == (Verdict.BAD, "restart this plugin")
    assert "slow.sock" in result.reason
    await stop_server(server)


async def test_a_kubelet_that_does_not_know_our_api_is_bad(node: TestNode) -> None:
    node.kubelet.faults.register_refusal = "requested API version is not supported. Supported: [v2]"
    result = await only(patient(node.paths.root), "registration")
    assert result.verdict is Verdict.BAD
    assert "does not know v1beta1" in result.reason


async def test_folders_that_are_missing_or_are_files_are_found(tmp_path: Path) -> None:
    (tmp_path / "plugins_registry").touch()
    missing, file = (await found(patient(tmp_path), "folders"))["folders"]
    assert (missing.verdict, file.verdict) == (Verdict.WARN, Verdict.BAD)
    assert "there is no" in missing.reason
    assert "is no folder" in file.reason


async def test_a_path_too_long_for_sockets_is_said_before_a_plugin_fails_on_it(tmp_path: Path) -> None:
    paths = KubeletPaths(tmp_path / ("long" * 15))
    paths.device_plugins.mkdir(parents=True)
    result = (await found(patient(paths.root), "folders"))["folders"][0]
    assert result.verdict is Verdict.WARN
    assert "107" in result.reason


async def test_an_agent_that_was_killed_is_noticed(tmp_path: Path) -> None:
    assert (await only(patient(tmp_path), "agent")).verdict is Verdict.GOOD
    with socket.socket(socket.AF_UNIX) as control:
        control.bind(str(tmp_path / "agent.sock"))
        control.listen()
        assert (await only(patient(tmp_path), "agent")).verdict is Verdict.GOOD
    assert (await only(patient(tmp_path), "agent")).verdict is Verdict.BAD


# --- devices -------------------------------------------------------------------------------------


async def test_a_sound_checkpoint_that_all_agree_on_is_well(node: TestNode) -> None:
    await node.serve(Fans("fan-0"))
    await node.devices(FAN, 1)
    await node.run_pod({FAN: 1})
    results = await found(patient(node.paths.root), "checkpoint", "records")
    assert results["checkpoint"][0].reason.startswith("it is sound: 1 container with devices, checksum ")
    assert results["records"][0].verdict is Verdict.GOOD
    assert NOWHERE in results["records"][0].reason


async def test_an_edited_checkpoint_is_bad_with_the_code_of_the_finding(node: TestNode) -> None:
    await node.serve(Fans("fan-0"))
    await node.devices(FAN, 1)
    await node.run_pod({FAN: 1})
    await node.kubelet.stop()
    blob = node.paths.checkpoint.read_bytes()
    node.paths.checkpoint.write_bytes(blob.replace(b"fan-0", b"fan-1"))
    results = (await found(patient(node.paths.root), "checkpoint"))["checkpoint"]
    assert max(result.verdict for result in results) is Verdict.BAD
    assert any(result.reason.endswith("[checksum]") and result.remedy for result in results)
    await node.kubelet.start()


async def test_a_checkpoint_that_cannot_be_read_is_bad_and_none_at_all_is_not(tmp_path: Path) -> None:
    paths = KubeletPaths(tmp_path)
    paths.device_plugins.mkdir()
    assert (await only(patient(tmp_path), "checkpoint")).verdict is Verdict.GOOD
    paths.checkpoint.write_bytes(b'{"Data":')
    assert (await only(patient(tmp_path), "checkpoint")).verdict is Verdict.BAD


async def test_a_stale_resource_is_named_with_the_command_that_removes_it(
    server: ApiServer, tmp_path: Path
) -> None:
    counts = {"capacity": {FAN: "2", "cpu": "4"}, "allocatable": {FAN: "0", "cpu": "4"}}
    heartbeat = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}
    status = {**counts, "conditions": [heartbeat]}
    server.registry.create(NODES, "", {"metadata": {"name": "worker"}, "status": status})
    clock = ManualClock()
    async with connect(server.url, SystemClock()) as client:
        result = await only(patient(tmp_path, client, clock), "extended resources")
    assert result.verdict is Verdict.WARN
    assert result.remedy.endswith(f"colocate resource remove worker {FAN}")


async def test_of_many_findings_the_gravest_few_are_shown_and_the_rest_counted(tmp_path: Path) -> None:
    paths = KubeletPaths(tmp_path)
    paths.device_plugins.mkdir()
    entries = [Entry(f"pod-{n}", "main", FAN, {-1: (f"fan-{n}",)}, b"") for n in range(40)]
    twice = [*entries, Entry("other", "main", FAN, {-1: ("fan-0",)}, b"")]
    paths.checkpoint.write_bytes(render(Checkpoint(tuple(twice), {})))
    results = (await found(patient(tmp_path), "checkpoint"))["checkpoint"]
    assert len(results) <= 7
    assert "[held-twice]" in results[0].reason
    assert results[0].verdict is Verdict.BAD


async def test_what_is_only_worth_knowing_is_no_complaint(node: TestNode) -> None:
    await node.serve(Fans("fan-0"))
    await node.devices(FAN, 1)
    pod = await node.run_pod({FAN: 1}, command=["true"], restartPolicy="Never")
    assert pod is not None
    checkpoint = node.paths.checkpoint.read_bytes()
    await node.delete_pod(pod)
    node.paths.checkpoint.write_bytes(checkpoint)  # Entries of dead pods linger.
    [result] = (await found(patient(node.paths.root), "records"))["records"]
    assert result.verdict is Verdict.GOOD
    assert "worth knowing" in result.reason


async def test_what_this_user_may_not_look_at_is_said_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: Path, **_: object) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    async def looks(patient: Patient) -> AsyncIterator[Result]:
        yield good(str(denied(patient.paths.checkpoint)))

    checks = [Check(Section.KUBELET, "looks", looks)]
    [one] = [e async for e in examine(patient(tmp_path), checks)]
    assert one.results[0].reason.endswith("kubelet_internal_checkpoint may not be looked at by this user")
    assert one.results[0].remedy == "run this as root"
    monkeypatch.setattr(Path, "is_dir", denied)
    [whole] = [e async for e in examine(patient(tmp_path), checks)]
    assert (whole.check, whole.results[0].remedy) == ("presence", "run this as root")


# --- the cluster ---------------------------------------------------------------------------------


async def test_an_administrator_on_a_ready_node_has_nothing_to_complain_of(
    server: ApiServer, tmp_path: Path
) -> None:
    ready = {"type": "Ready", "status": "True"}
    server.registry.create(NODES, "", {"metadata": {"name": "worker"}, "status": {"conditions": [ready]}})
    async with connect(server.url, SystemClock()) as client:
        results = await found(patient(tmp_path, client), "api server", "node", "permissions")
    assert {r.verdict for all in results.values() for r in all} == {Verdict.GOOD}
    [permissions] = results["permissions"]
    assert permissions.reason.startswith(
        "kubernetes-admin may do all that these ask for: colocate resource list"
    )
    assert "--act taints" in permissions.reason


async def test_what_an_identity_may_not_is_told_by_what_needs_it(server: ApiServer, tmp_path: Path) -> None:
    grant(server, "ann", {"verbs": ["get", "list"], "apiGroups": [""], "resources": ["nodes", "pods"]})
    async with connect(server.url, SystemClock(), token="ann-token") as client:
        *refused, allowed = (await found(patient(tmp_path, client), "permissions"))["permissions"]
    assert [result.reason for result in refused] == [
        "colocate resource advertise and remove: not as ann, who may not patch nodes/status",
        "colocate scheduler serve: not as ann, who may not watch nodes, watch pods",
        "colocate scheduler serve --act taints: not as ann, who may not patch nodes, "
        "create leases.coordination.k8s.io in kube-system, get leases.coordination.k8s.io in kube-system, "
        "update leases.coordination.k8s.io in kube-system",
        "the agent that sells memory: not as ann, who may not watch nodes, watch pods, create events, "
        "patch events, create pods/eviction",
        "the agent that moves bare pods which allow it: not as ann, who may not create pods",
    ]
    assert "kubectl create clusterrole NAME --verb=patch --resource=nodes/status;" in refused[0].remedy
    assert (
        "kubectl -n kube-system create role NAME --verb=create,get,update --resource=leases.coordination.k8s.io;"
        in refused[2].remedy
    )
    assert allowed.reason.endswith(": colocate resource list, colocate checkpoint diff")


async def test_the_roles_that_are_shipped_suffice_for_the_scheduler(
    server: ApiServer, tmp_path: Path
) -> None:
    shipped = Path(__file__).parents[2] / "examples" / "scheduler" / "rbac.yaml"
    kinds = {"ClusterRole": CLUSTER_ROLES, "ClusterRoleBinding": CLUSTER_ROLE_BINDINGS}
    kinds |= {"Role": ROLES, "RoleBinding": ROLE_BINDINGS}
    for each in yaml.safe_load_all(shipped.read_text()):
        if each["kind"] in kinds:
            kind = kinds[each["kind"]]
            server.registry.create(kind, each["metadata"].get("namespace", ""), each)
    async with connect(server.url, SystemClock(), token="account-token") as client:
        *_, allowed = (await found(patient(tmp_path, client), "permissions"))["permissions"]
    assert allowed.reason.endswith("colocate scheduler serve, colocate scheduler serve --act taints")


@pytest.mark.parametrize(
    ("status", "spec", "verdict", "words"),
    [
        ([("Ready", "False")], {}, Verdict.BAD, "is not Ready"),
        ([], {}, Verdict.BAD, "is not Ready"),
        ([("Ready", "True"), ("MemoryPressure", "True")], {}, Verdict.WARN, "MemoryPressure"),
        ([("Ready", "True")], {"unschedulable": True}, Verdict.WARN, "cordoned"),
    ],
)
async def test_a_node_that_is_not_well(
    server: ApiServer,
    tmp_path: Path,
    status: list[tuple[str, str]],
    spec: dict[str, Any],
    verdict: Verdict,
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
    assert result.verdict is Verdict.WARN
    assert "--node" in result.remedy


async def test_a_server_that_does_not_take_the_token_is_bad(server: ApiServer, tmp_path: Path) -> None:
    async with connect(server.url, SystemClock(), token="old") as client:
        result = await only(patient(tmp_path, client), "api server")
    assert result.verdict is Verdict.BAD


async def test_without_a_cluster_that_is_said_once(tmp_path: Path) -> None:
    results = [e async for e in examine(patient(tmp_path), chosen()) if e.section is Section.CLUSTER]
    assert [(e.check, e.results[0].reason) for e in results] == [("presence", NOWHERE)]


# --- checks themselves ---------------------------------------------------------------------------


async def test_a_check_is_one_function(tmp_path: Path) -> None:
    @check(Section.MACHINE, "fans turn")
    async def fans(patient: Patient) -> AsyncIterator[Result]:
        yield warn(f"{patient.node} is warm", "dust it")

    try:
        assert await found(patient(tmp_path), "fans*") == {"fans turn": (warn("worker is warm", "dust it"),)}
    finally:
        CHECKS.pop()


async def test_a_check_that_fails_or_hangs_is_a_finding_and_stops_no_other(tmp_path: Path) -> None:
    async def breaks(_: Patient) -> AsyncIterator[Result]:
        yield good("so far")
        raise ZeroDivisionError("by zero")

    async def refuses(patient: Patient) -> AsyncIterator[Result]:
        if patient:
            raise UserError("cannot do that")
        yield good("never")

    async def hangs(_: Patient) -> AsyncIterator[Result]:
        await asyncio.Event().wait()
        yield good("never")

    async def works(_: Patient) -> AsyncIterator[Result]:
        yield good("fine")

    clock = ManualClock()
    checks = [Check(Section.MACHINE, look.__name__, look) for look in (breaks, refuses, hangs, works)]

    async def gather() -> list[Examined]:
        return [e async for e in examine(patient(tmp_path, clock=clock), checks)]

    looking = asyncio.create_task(gather())
    while not looking.done():
        await clock.advance(PATIENCE)
    broken, refused, hung, fine = await looking
    assert [r.verdict for r in broken.results] == [Verdict.GOOD, Verdict.BAD]
    assert "ZeroDivisionError: by zero" in broken.results[1].reason
    assert refused.results[0].reason == "cannot do that"
    assert hung.results[0].reason == "no answer within 30 s"
    assert fine.worst is Verdict.GOOD


def test_every_check_has_a_name_of_its_own_and_says_what_it_looks_at() -> None:
    checks = chosen()
    assert len({check.name for check in checks}) == len(checks)
    assert all(check.look.__doc__ for check in checks)


def test_a_node_is_named_by_its_pod_or_by_its_machine() -> None:
    assert this_node({"NODE_NAME": "worker-1"}) == "worker-1"
    assert this_node({}) == this_node({}).lower() != ""


# --- memory --------------------------------------------------------------------------------------


async def test_what_selling_memory_builds_upon_is_told_part_by_part(tmp_path: Path) -> None:
    results = (await found(patient(tmp_path), "memory"))["memory"]
    parts = [result.reason.partition(":")[0] for result in results]
    assert parts == ["pods", "limits", "swap", "pressure", "pressure of pods", "far nodes", "page migration"]
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
