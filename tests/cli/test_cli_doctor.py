"""`colocate doctor` as a process: its output for people and programs, and its exit codes."""

import json
from pathlib import Path

import grpc.aio
from tests.cli.running import colocate, on_terminal
from tests.scheduler.pretending import pretending
from tests.scheduler.story import telling
from tests.support.cri_runtime import Requests, serving

from colocate.testing import TestNode
from colocate.wire import cri_pb2 as cri

OF_THE_KUBELET = (
    "agent",
    "folders",
    "registration",
    "device plugins",
    "podresources",
    "checkpoint",
    "records",
)
"""What of the machine itself is well depends on the machine."""


async def test_the_worst_verdict_is_the_exit_code(node: TestNode, short: Path) -> None:
    where = ("--kubelet-root", node.paths.root, "--no-cluster")
    well = await colocate(
        "doctor", *OF_THE_KUBELET, *where, COLOCATE_CONTROL_SOCKET=str(short / "agent.sock")
    )
    assert (well.code, well.err) == (0, "")
    assert "✓ registration: the kubelet answers" in well.out
    node.kubelet.faults.podresources_refusal = "not now"
    warned = await colocate("doctor", "podresources", *where)
    assert warned.code == 1
    assert "! podresources: " in warned.out
    assert "→" in warned.out
    missing = await colocate("doctor", *OF_THE_KUBELET, "--kubelet-root", short / "none", "--no-cluster")
    assert missing.code == 2
    assert "✗ presence: " in missing.out


async def test_on_a_terminal_sentences_fit_and_hang_below_their_beginning(short: Path) -> None:
    where = (*OF_THE_KUBELET, "--kubelet-root", short / "none", "--no-cluster")
    shown = (await on_terminal("doctor", *where)).out
    assert "\x1b[31m✗\x1b[0m presence" in shown
    plain = (await on_terminal("doctor", *where, NO_COLOR="1")).out
    assert max(map(len, plain.splitlines())) <= 80
    assert (
        "    → run this on a node, or give the kubelet's folder with --kubelet-root; in a\n      pod,"
        in plain
    )
    piped = (await colocate("doctor", *where)).out
    assert "folder with --kubelet-root; in a pod, mount it there\n" in piped, "so that grep finds it"
    assert plain.split() == piped.split()


async def test_json_has_every_result_with_its_remedy(short: Path) -> None:
    where = ("--kubelet-root", short / "none", "--no-cluster")
    ended = await colocate("doctor", *OF_THE_KUBELET, "-o", "json", *where)
    results = json.loads(ended.out)
    assert {result["verdict"] for result in results} == {"absent", "bad"}
    assert all(result["remedy"] for result in results if result["verdict"] != "absent")


async def test_json_is_nothing_but_json_where_a_node_has_no_sample(tmp_path: Path) -> None:
    async with (
        pretending({"n1": (10.0, 20.0)}) as prometheus,
        telling(prometheus.url, ("n1", "n2")) as story,
    ):
        config, kubeconfig = tmp_path / "scheduler.yaml", tmp_path / "kubeconfig"
        config.write_text(f"version: 1\nusage: {{prometheus: {{url: '{prometheus.url}'}}}}")
        story.cluster.server.write_kubeconfig(kubeconfig)
        where = ("--scheduler-config", config, "--kubeconfig", kubeconfig)
        ended = await colocate("doctor", "samples", "-o", "json", *where)
    assert ended.code == 1, ended.err
    reasons = [result["reason"] for result in json.loads(ended.out)]
    assert any("n2" in reason and "no sample" in reason for reason in reasons), reasons


async def test_the_password_in_the_address_of_prometheus_is_never_shown(tmp_path: Path) -> None:
    url = "http://bob:hunter2@127.0.0.1:9/prom"
    async with telling("http://127.0.0.1:9", ("n1",)) as story:
        config, kubeconfig = tmp_path / "scheduler.yaml", tmp_path / "kubeconfig"
        config.write_text(f"version: 1\nusage: {{prometheus: {{url: '{url}'}}}}")
        story.cluster.server.write_kubeconfig(kubeconfig)
        where = ("--scheduler-config", config, "--kubeconfig", kubeconfig)
        ended = await colocate("doctor", "samples", *where)
    assert ended.code == 2, ended.err
    assert "http://127.0.0.1:9/prom" in ended.out
    assert "hunter2" not in ended.out + ended.err


async def test_a_cluster_that_was_named_and_is_not_there_is_a_users_error(short: Path) -> None:
    ended = await colocate("doctor", "--kubeconfig", short / "nowhere")
    assert ended.code == 2
    assert ended.err.startswith("colocate: ")
    assert ended.err.count("\n") == 1


async def test_checks_are_chosen_by_name(short: Path) -> None:
    listed = await colocate("doctor", "--list")
    assert "registration (its kubelet)" in listed.out.splitlines()
    unknown = await colocate("doctor", "tyres")
    assert (unknown.code, unknown.err) == (
        2,
        "colocate: no check is named tyres; 'colocate doctor --list' lists them\n",
    )


async def test_the_sockets_of_a_nodes_configuration_are_looked_at(node: TestNode, short: Path) -> None:
    async def version(path: str, requests: Requests, context: grpc.aio.ServicerContext) -> None:
        async for _ in requests:
            said = cri.VersionResponse(runtime_name="containerd", runtime_version="2.1.9")
            await context.write(said.SerializeToString())

    config = short / "colocate.yaml"
    config.write_text(
        f"version: 1\ncpus: {{socket: {short}/cpus.sock, stateFolder: {short}/state, nri: {{socket: {short}/nri}}}}\n"
    )
    (node.paths.root / "config.yaml").write_text(f"containerRuntimeEndpoint: unix://{short}/cri.sock\n")
    asked = ("doctor", "placement*", "--kubelet-root", node.paths.root, "--no-cluster", "--config", config)
    async with serving(short / "cri.sock", version):
        off = (await colocate(*asked)).out
        assert "containerd 2.1.9 can have NRI, but it is off" in off
        assert f"no placer answers on {short}/cpus.sock" in off
        async with serving(short / "nri", version):
            assert "containerd 2.1.9 has NRI: 'colocate nri' fits" in (await colocate(*asked)).out
            said = await colocate(*asked[:-2], COLOCATE_CPUS_NRI_SOCKET=str(short / "nri"))
            assert "containerd 2.1.9 has NRI" in said.out
    wrong = await colocate(*asked[:-1], short / "none.yaml")
    assert wrong.code == 2
    assert wrong.err.startswith("colocate: ")


async def test_a_check_that_was_named_and_lacks_its_configuration_is_a_users_error(node: TestNode) -> None:
    where = ("--kubelet-root", node.paths.root, "--no-cluster")
    for names in (("samples",), ("registration", "extender")):
        ended = await colocate("doctor", *names, *where)
        assert (ended.code, ended.out) == (2, "")
        assert ended.err == (
            f"colocate: {names[-1]}: this check needs the configuration of 'colocate scheduler'; "
            f"give it with --scheduler-config\n"
        )
    assert (await colocate("doctor", "*", *where)).code < 2, "what matches others as well is not missed"


async def test_without_the_cluster_it_is_not_asked_by_any_check(node: TestNode) -> None:
    ended = await colocate(
        *("doctor", "records", "--no-cluster", "--kubelet-root", node.paths.root), KUBECONFIG="/nowhere"
    )
    assert "/nowhere" not in ended.out + ended.err
    assert ended.code < 2
