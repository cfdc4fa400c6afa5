"""`colocate agent` and `colocate mock`: real processes, with an embedded kubelet where one is needed."""

import asyncio
import json
import signal
import socket as sockets
import stat
import urllib.request
from pathlib import Path

import aiohttp
import pytest
from tests.cli.running import colocate, running_agent
from tests.support.crowds import crowd
from tests.support.waiting import until

from colocate.testing import TestNode

GPU = "mock/gpu"


def write(folder: Path, *resources: str, more: str = "", root: Path | None = None) -> Path:
    """A configuration in which every resource is a line of YAML."""
    file = folder / "agent.yaml"
    listed = "".join(f"\n    - {{{resource}}}" for resource in resources)
    file.write_text(f"version: 1\nkubelet:\n  root: {root or folder}\n{more}\nmock:\n  resources:{listed}\n")
    return file


async def test_devices_come_faults_show_and_sigterm_ends_it(node: TestNode, short: Path) -> None:
    file = write(short, "name: mock/gpu, count: 3", root=node.paths.root)
    async with running_agent(file, short) as agent:
        await node.devices(GPU, 3)
        pod = await node.run_pod({GPU: 1})
        assert node.env(pod)["MOCK_GPU"] in {"gpu-0000", "gpu-0001", "gpu-0002"}

        assert (await agent.mock("unhealthy", GPU, "gpu-0002")).out == (
            "mock/gpu: 2 healthy; 1 unhealthy (gpu-0002)\n"
        )
        await agent.event("mock.fault_set", resource=GPU, do="unhealthy")
        await node.devices(GPU, 2)
        await agent.mock("clear", GPU)
        await agent.event("mock.fault_cleared", resource=GPU)
        await node.devices(GPU, 3)

        assert await agent.end() == 0
        assert agent.seen[-1]["event"] == "agent.stopped"
        assert not agent.socket.exists()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
async def test_withdrawn_devices_are_gone_when_it_stops(
    node: TestNode, short: Path, how: signal.Signals
) -> None:
    file = write(short, "name: mock/gpu, count: 3", root=node.paths.root)
    async with running_agent(file, short, "--set", "kubelet.onStop=withdraw") as agent:
        await node.devices(GPU, 3)
        assert await agent.end(how) == 0
        assert not node.kubelet.devices.table.devices.get(GPU)


async def test_sighup_changes_adds_and_removes_resources(node: TestNode, short: Path) -> None:
    file = write(short, "name: mock/gpu, count: 3", "name: mock/old, count: 1", root=node.paths.root)
    async with running_agent(file, short) as agent:
        await node.devices(GPU, 3)
        await node.devices("mock/old", 1)
        await agent.mock("unhealthy", GPU, "gpu-0000")
        write(
            short,
            "name: mock/gpu, count: 5",
            "name: mock/new, count: 2",
            more="  onStop: withdraw",
            root=node.paths.root,
        )
        agent.process.send_signal(signal.SIGHUP)
        reloaded = await agent.event("config.reloaded")
        assert (reloaded["added"], reloaded["removed"]) == (["mock/new"], ["mock/old"])
        assert reloaded["at_next_start"] == ["kubelet"]
        await agent.event("plugin.stopped", resource="mock/old", on_stop="withdraw")
        await agent.event("plugin.registered", resource="mock/new")
        await node.devices(GPU, 4)
        await node.devices("mock/new", 2)
        assert not node.kubelet.devices.table.devices.get("mock/old")
        listed = json.loads((await agent.mock("list", "-o", "json")).out)
        assert [status["resource"] for status in listed] == [GPU, "mock/new"]
        assert await agent.end() == 0


async def test_sighup_registers_again(node: TestNode, short: Path) -> None:
    file = write(short, "name: mock/gpu, count: 3", root=node.paths.root)
    async with running_agent(file, short) as agent:
        first = await agent.event("plugin.registered", resource=GPU)
        agent.process.send_signal(signal.SIGHUP)
        second = await agent.event("plugin.registered", resource=GPU)
        assert first["socket"] != second["socket"]
        await node.devices(GPU, 3)


async def test_a_bad_configuration_is_refused_and_the_old_one_goes_on(short: Path) -> None:
    file = write(short, "name: mock/gpu, count: 3")
    async with running_agent(file, short) as agent:
        file.write_text("version: 1\nmock: {resources: [{name: mock/gpu, count: -1}]}")
        agent.process.send_signal(signal.SIGHUP)
        refused = await agent.event("config.refused")
        assert refused["reason"] == (
            f"{file}: mock.resources[0].count: -1 is below 0; set the number of devices"
        )
        assert (await agent.mock("list")).out == "mock/gpu: 3 healthy\n"
        assert await agent.end() == 0


async def test_an_agent_without_resources_is_idle_and_says_so(short: Path) -> None:
    async with running_agent(write(short), short, COLOCATE_KUBELT_ROOT="/x") as agent:
        assert (await agent.event("agent.idle"))["reason"] == "no resource is configured"
        assert any(
            event["event"] == "config.doubtful" and "COLOCATE_KUBELT_ROOT" in event["reason"]
            for event in agent.seen
        )
        assert (await agent.mock("list")).out.startswith("this agent has no mock resources; declare some")
        assert (await agent.mock("hang", GPU)).err == (
            "colocate: there is no mock resource 'mock/gpu'; there are no mock resources\n"
        )
        assert await agent.end(signal.SIGINT) == 0


async def test_every_fault_can_be_ordered_and_is_shown(short: Path) -> None:
    async with running_agent(write(short, "name: mock/gpu, count: 3, numa: {nodes: [0, 1]}"), short) as agent:
        await agent.mock("unhealthy", GPU, "gpu-0000", "gpu-0001")
        await agent.mock("healthy", GPU, "gpu-0001")
        await agent.mock("vanish", GPU, "gpu-0001", "gpu-0002")
        await agent.mock("return", GPU, "gpu-0001")
        await agent.mock("slow", GPU, "500ms")
        await agent.mock("fail", GPU, "no fan", "--times", "2")
        await agent.mock("hang", GPU)
        ended = await agent.mock("list", GPU)
        assert ended.out == (
            "mock/gpu: 1 healthy; 1 unhealthy (gpu-0000); 1 vanished (gpu-0002); Allocate takes 0.5 s; "
            "Allocate fails 2× (no fan); hangs until cleared\n"
            "  gpu-0000  unhealthy  NUMA node 0\n"
            "  gpu-0001  healthy  NUMA node 1\n"
            "  gpu-0002  vanished  NUMA node 0\n"
        )
        assert (await agent.mock("clear", GPU)).out == "mock/gpu: 3 healthy\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("unhealthy", GPU, "gpu-1"),
            "mock/gpu has no device 'gpu-1'; did you mean 'gpu-0001'? known ids are gpu-0000, gpu-0001",
        ),
        (
            ("hang", "mock/gpus"),
            "there is no mock resource 'mock/gpus'; did you mean 'mock/gpu'? known mock resources "
            "are mock/gpu",
        ),
        (
            ("list", "x"),
            "there is no mock resource 'x'; known mock resources are mock/gpu",
        ),
        (
            ("slow", GPU, "-1"),
            "SECONDS: '-1' is not a span of time; write a number of seconds, or a span like 500ms, 10s, 1m, 1h",
        ),
        (("fail", GPU, "--times", "0"), "--times: '0' is not a whole number from 1 to 1000000"),
    ],
)
async def test_an_impossible_fault_is_one_sentence(
    short: Path, arguments: tuple[str, ...], said: str
) -> None:
    async with running_agent(write(short, "name: mock/gpu, count: 2"), short) as agent:
        ended = await agent.mock(*arguments)
        assert (ended.code, ended.err) == (2, f"colocate: {said}\n")


async def test_without_an_agent_the_remedy_is_named(short: Path) -> None:
    ended = await colocate("mock", "list", COLOCATE_CONTROL_SOCKET=str(short / "none.sock"))
    assert (ended.code, ended.err) == (
        2,
        f"colocate: no agent answers on {short}/none.sock; start one with 'colocate agent --config FILE', "
        f"or give its socket with --socket or COLOCATE_CONTROL_SOCKET\n",
    )


async def test_only_the_agents_user_may_connect(short: Path) -> None:
    async with running_agent(write(short), short / "new" / "folder") as agent:
        assert stat.S_IMODE(agent.socket.stat().st_mode) == 0o600
        assert stat.S_IMODE(agent.socket.parent.stat().st_mode) == 0o700


async def test_two_agents_do_not_share_a_control_socket(short: Path) -> None:
    file = write(short)
    async with running_agent(file, short) as agent:
        ended = await colocate("agent", "--config", file, COLOCATE_CONTROL_SOCKET=str(agent.socket))
        assert (ended.code, ended.err) == (
            2,
            f"colocate: control.socket: another agent already runs with the control socket {agent.socket}; "
            f"stop it, or give this one another with control.socket or COLOCATE_CONTROL_SOCKET\n",
        )
        assert (await agent.mock("list")).code == 0


async def test_the_socket_of_a_killed_agent_is_taken_over(short: Path) -> None:
    file = write(short)
    async with running_agent(file, short) as killed:
        assert await killed.end(signal.SIGKILL) == -signal.SIGKILL
        assert killed.socket.exists()
    async with running_agent(file, short) as agent:
        assert any(event["event"] == "stale_socket.removed" for event in agent.seen)
        assert (await agent.mock("list")).code == 0


async def test_what_is_no_socket_is_left_alone(short: Path) -> None:
    precious = short / "agent.sock"
    precious.write_text("precious")
    ended = await colocate("agent", "--config", write(short), COLOCATE_CONTROL_SOCKET=str(precious))
    assert ended.code == 2
    assert f"{precious} exists and is not a socket; choose another path" in ended.err
    assert precious.read_text() == "precious"


async def test_metrics_are_served_where_it_was_said(short: Path) -> None:
    file = write(short, "name: mock/gpu, count: 3", more="metrics: {address: '127.0.0.1:0'}")
    async with running_agent(file, short) as agent:
        address = agent.seen[-1]["metrics"]

        def ask() -> str:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
                return str(answer.read().decode())

        await agent.event("kubelet.awaited")
        text = await asyncio.to_thread(ask)
        assert 'colocate_plugin_devices{health="healthy",resource="mock/gpu"} 3.0' in text


@pytest.mark.parametrize(("address", "loaded"), [("off", False), ("127.0.0.1:0", True)])
async def test_an_agent_without_metrics_loads_no_http_server(short: Path, address: str, loaded: bool) -> None:
    file = write(short, "name: mock/gpu, count: 3", more=f"metrics: {{address: '{address}'}}")
    async with running_agent(file, short) as agent:
        await agent.event("kubelet.awaited")
        maps = Path(f"/proc/{agent.process.pid}/maps").read_text()
        assert ("/httptools/" in maps) is loaded
        assert "/aiohttp/" not in maps, "it is a client, and nothing is asked here"


async def test_idle_sockets_on_the_metrics_port_cost_an_agent_neither_threads_nor_its_answers(
    short: Path,
) -> None:
    file = write(short, "name: mock/gpu, count: 3", more="metrics: {address: '127.0.0.1:0'}")
    async with running_agent(file, short) as agent:
        await agent.event("kubelet.awaited")
        url = f"http://{next(event['metrics'] for event in agent.seen if 'metrics' in event)}"
        threads = Path(f"/proc/{agent.process.pid}/task")
        before = len(list(threads.iterdir()))
        async with crowd(int(url.rpartition(":")[2])) as strangers:
            await strangers.come(300)
            for path, status in (("/metrics", 200), ("/", 404), ("/metrics", 200)):
                async with aiohttp.ClientSession() as session, session.get(f"{url}{path}") as answer:
                    assert answer.status == status
            await until(lambda: strangers.left() <= 32, "the cap of one address to be kept")
            assert len(list(threads.iterdir())) <= before + 2
        assert (await agent.mock("list")).code == 0


async def test_a_port_that_is_taken_is_one_sentence(short: Path) -> None:
    with sockets.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = await colocate(
            "agent",
            "--config",
            write(short),
            COLOCATE_METRICS_ADDRESS=address,
            COLOCATE_CONTROL_SOCKET=str(short / "agent.sock"),
        )
    assert (ended.code, ended.err) == (
        2,
        f"colocate: metrics.address: cannot listen on {address} (address already in use); "
        f"choose another address, or 'off'\n",
    )


async def test_what_containers_are_given_is_never_logged(node: TestNode, short: Path) -> None:
    file = write(
        short, "name: mock/gpu, count: 1, inject: {envs: {TOKEN: 's3cr3t-{ids}'}}", root=node.paths.root
    )
    async with running_agent(file, short, "--log-level", "debug") as agent:
        await node.devices(GPU, 1)
        pod = await node.run_pod({GPU: 1})
        assert node.env(pod)["TOKEN"] == "s3cr3t-gpu-0000"
        agent.process.send_signal(signal.SIGHUP)
        await agent.event("config.reloaded")
        await agent.end()
        assert "s3cr3t" not in str(agent.seen)


async def test_a_folder_that_cannot_be_made_is_one_sentence(short: Path) -> None:
    ended = await colocate("agent", "--config", write(short), COLOCATE_CONTROL_SOCKET="/proc/x/agent.sock")
    assert (ended.code, ended.err) == (
        2,
        "colocate: control.socket: cannot make a socket in /proc/x (no such file or directory); "
        "choose another path with control.socket or COLOCATE_CONTROL_SOCKET\n",
    )
