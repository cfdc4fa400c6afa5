"""`colocate nri`, and NRI as a part of `colocate agent`: real processes, and the runtime's side of a test."""

import asyncio
import json
import signal
from pathlib import Path

import msgspec
from tests.cli.running import COMMAND, colocate, running_agent
from tests.support.nri_runtime import NriRuntime, PluginConnection

from colocate.wire import nri_pb2 as nri

CREATE = nri.CreateContainerRequest(
    pod=nri.PodSandbox(id="5a", uid="u", name="pod", namespace="default", pid=7),
    container=nri.Container(id="c0", pod_sandbox_id="5a", name="main"),
)
CREATE.pod.linux.cgroup_parent = "/kubepods/podu"
CREATE.container.linux.resources.cpu.shares.value = 1024
CREATE.container.linux.resources.cpu.quota.value = 100_000
CREATE.container.linux.resources.cpu.period.value = 100_000


def cpus_section(folder: Path, more: str = "") -> str:
    """Decides for a machine of two CPUs, which every machine has."""
    return (
        f"cpus:\n  topology: 1x2x1x1x1\n  stateFolder: {folder}/state\n  socket: {folder}/cpus.sock\n"
        f"  nri: {{enabled: true, socket: {folder}/nri.sock, index: '07'}}\n{more}"
    )


async def placed(plugin: PluginConnection) -> str:
    """Create a container of one whole CPU; the CPUs that it is given."""
    await plugin.ask("Synchronize", nri.SynchronizeRequest(), timeout=60)
    answer = await plugin.ask("CreateContainer", CREATE, timeout=60)
    return nri.CreateContainerResponse.FromString(answer.payload).adjust.linux.resources.cpu.cpus


async def test_the_agent_places_containers_where_it_is_told_to(short: Path) -> None:
    file = short / "agent.yaml"
    file.write_text(f"version: 1\nkubelet: {{root: {short}}}\n{cpus_section(short)}")
    async with NriRuntime(short / "nri.sock").listening() as runtime, running_agent(file, short) as agent:
        plugin = await runtime.connection()
        stream, request = await plugin.called("RegisterPlugin")
        assert nri.RegisterPluginRequest.FromString(request.payload).plugin_idx == "07"
        await plugin.ask("Configure", nri.ConfigureRequest(runtime_name="test"))
        plugin.answer(stream)
        assert await placed(plugin) in ("0", "1")
        said = await colocate("cpus", "status", "--socket", str(short / "cpus.sock"), "-o", "json")
        assert [each["container"] for each in json.loads(said.out)["containers"]] == ["main"]

        file.write_text(file.read_text() + "  policy: none\n")
        agent.process.send_signal(signal.SIGHUP)
        await agent.event("config.reloaded")
        stream, request = await plugin.called("UpdateContainers")
        update = nri.UpdateContainersRequest.FromString(request.payload).update[0]
        assert (update.container_id, update.linux.resources.cpu.cpus != "") == ("c0", True)
        plugin.answer(stream)

        file.write_text(file.read_text().replace("enabled: true", "enabled: false"))
        agent.process.send_signal(signal.SIGHUP)
        assert (await agent.event("config.reloaded"))["at_next_start"] == ["cpus.nri"]
        assert await agent.end() == 0


async def test_neither_runs_beside_a_static_cpu_manager_nor_beside_another_placer(short: Path) -> None:
    file = short / "agent.yaml"
    file.write_text(f"version: 1\nkubelet: {{root: {short}}}\n{cpus_section(short)}")
    command = ("nri", "--config", str(file))
    environment = {"COLOCATE_KUBELET_ROOT": str(short)}
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *command, stderr=asyncio.subprocess.PIPE, env={**environment, "PATH": "/usr/bin:/bin"}
    )
    try:
        assert process.stderr is not None
        assert json.loads(await process.stderr.readline())["event"] == "nri.started"
        for words in (command, ("agent", "--config", str(file), "--set", f"control.socket={short}/a.sock")):
            ended = await colocate(*words, **environment)
            assert ended.code == 2
            assert "another placer works with" in ended.err
    finally:
        process.terminate()
        await process.communicate()
    (short / "cpu_manager_state").write_text(msgspec.json.encode({"policyName": "static"}).decode())
    for words in (command, ("agent", "--config", str(file), "--set", f"control.socket={short}/a.sock")):
        ended = await colocate(*words, **environment)
        assert ended.code == 2
        assert "the kubelet's CPU manager is static" in ended.err


async def test_a_wrong_index_or_socket_is_one_sentence(short: Path) -> None:
    file = short / "agent.yaml"
    file.write_text("version: 1\ncpus:\n  nri: {index: '7'}\n")
    ended = await colocate("nri", "--config", str(file))
    assert (ended.code, ended.err) == (
        2,
        f"colocate: {file}: cpus.nri.index: '7' is not two digits, such as '90'\n",
    )
    ended = await colocate("nri", "--socket", "tcp://localhost:1")
    assert (ended.code, ended.err) == (
        2,
        "colocate: --socket: tcp://localhost:1 is not a unix socket; write unix:///PATH\n",
    )
