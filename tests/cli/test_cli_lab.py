"""`colocate lab` and `colocate demo` as a person uses them: a process, a terminal, kubectl, Ctrl-C."""

import asyncio
import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from tests.support import components
from tests.support.waiting import until

COMMAND = [sys.executable, "-m", "colocate.cli.main"]


def left_behind(folder: str, pid: int) -> list[Path]:
    """The folder and the control groups of a demo, as far as they are there."""
    named = f"colocate-demo-{pid}"
    groups = [group for pattern in (named, f"*/{named}") for group in Path("/sys/fs/cgroup").glob(pattern)]
    return [path for path in (Path(folder), *groups) if path.exists()]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lab", "--port", "-5"], "--port: -5 is not a port"),
        (["lab", "--port", "99999"], "--port: 99999 is not a port"),
        (["lab", "--plugin-grace", "soon"], "--plugin-grace: 'soon' is not a span"),
        (["lab", "--status-sync", "0"], "--status-sync: '0' is not more than 0"),
        (["lab", "--node-name", "Upper"], "--node-name: 'Upper' cannot name a node"),
        (["lab", "--nodes", "-1"], "--nodes: -1 is not between"),
        (["lab", "--nodes-file", "/nonexistent.yaml"], "cannot be read"),
        (["lab", "--scheduler-config", "/nonexistent.yaml"], "cannot be read"),
        (
            ["lab", "--kubeconfig", "/nonexistent/kubeconfig"],
            "kubeconfig cannot be written",
        ),
        (["demo", "--speed", "nan"], "--speed: must be greater than 0"),
    ],
)
def test_a_bad_flag_is_one_sentence_and_exit_code_2(words: list[str], said: str) -> None:
    done = run(*words)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def test_a_port_in_use_is_one_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run("lab", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert "choose another port" in done.stderr


def test_a_simulated_node_cannot_be_this_machine(tmp_path: Path) -> None:
    (tmp_path / "nodes.yaml").write_text("nodes: [{name: this-machine}]")
    done = run("lab", "--nodes-file", str(tmp_path / "nodes.yaml"))
    assert done.returncode == 2
    assert "rename it" in done.stderr


@asynccontextmanager
async def lab(*words: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A running lab and its KUBECONFIG; it has gone when the block ends, however that ends."""
    process = await asyncio.create_subprocess_exec(*COMMAND, "lab", *words, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
        assert line.startswith("export KUBECONFIG="), line
        await process.stdout.readline()
        yield process, line.strip().removeprefix("export KUBECONFIG=")
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), 60)


async def kubectl(kubeconfig: str, *words: str) -> str:
    program = components.find("kubectl")
    assert program is not None
    process = await asyncio.create_subprocess_exec(
        *[program, *words],
        env={**os.environ, "KUBECONFIG": kubeconfig},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 120)
    return output.decode()


@pytest.mark.needs("kubectl")
async def test_the_state_file_survives_kill_9_and_pods_run_again(tmp_path: Path) -> None:
    flags = ["--state", str(tmp_path / "state.db"), "--kubeconfig", str(tmp_path / "kubeconfig")]
    async with lab(*flags, "--nodes", "3") as (process, kubeconfig):
        await kubectl(kubeconfig, "create", "configmap", "kept", "--from-literal=a=b")
        await kubectl(kubeconfig, "create", "deployment", "web", "--image=any", "--replicas=6")
        await kubectl(kubeconfig, "rollout", "status", "deployment/web", "--timeout=60s")
        second = run("lab", *flags)
        assert second.returncode == 2, "two labs on one file"
        process.kill()
    async with lab(*flags, "--nodes", "1") as (_, kubeconfig):
        assert "b" in await kubectl(kubeconfig, "get", "configmap", "kept", "-o", "jsonpath={.data.a}")
        assert len((await kubectl(kubeconfig, "get", "nodes", "-o", "name")).splitlines()) == 4
        await kubectl(kubeconfig, "scale", "deployment/web", "--replicas=12")
        status = await kubectl(kubeconfig, "rollout", "status", "deployment/web", "--timeout=60s")
        assert "successfully rolled out" in status, "nodes of the first run are still looked after"


@pytest.mark.needs("kubectl")
async def test_a_pod_that_cannot_be_created_says_why_and_can_be_deleted(tmp_path: Path) -> None:
    async with lab("--nodes", "0", "--kubeconfig", str(tmp_path / "kubeconfig")) as (_, kubeconfig):
        container = {
            "name": "main",
            "image": "i",
            "command": ["true"],
            "env": [{"name": "A", "value": "x" * 200_000}],
        }
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "huge"},
            "spec": {"containers": [container]},
        }
        pod = tmp_path / "pod.json"
        pod.write_text(json.dumps(body))
        await kubectl(kubeconfig, "create", "-f", str(pod))
        for _ in range(100):
            events = await kubectl(kubeconfig, "get", "events")
            if "Failed" in events:
                break
            await asyncio.sleep(0.05)
        assert "rgument list too long" in events
        assert "deleted" in await kubectl(kubeconfig, "delete", "pod", "huge", "--timeout=30s")


@pytest.mark.needs("kubectl")
async def test_a_scheduler_configuration_brings_an_extender_and_a_second_name(tmp_path: Path) -> None:
    """On a real cluster this needs a kube-scheduler that can reach the extender; here it can."""
    asked: list[str] = []

    async def prioritize(request: web.Request) -> web.Response:
        names = (await request.json())["NodeNames"]
        asked.extend(names)
        return web.json_response([{"Host": name, "Score": 10 * (name == "node-0002")} for name in names])

    app = web.Application()
    app.router.add_post("/prioritize", prioritize)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    extender = {
        "urlPrefix": f"http://127.0.0.1:{port}",
        "prioritizeVerb": "prioritize",
        "weight": 10,
        "nodeCacheCapable": True,
    }
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"schedulerName": "default-scheduler"}, {"schedulerName": "second"}],
        "extenders": [extender],
    }
    (tmp_path / "scheduler.yaml").write_text(json.dumps(config))
    flags = ["--nodes", "3", "--scheduler-config", str(tmp_path / "scheduler.yaml")]
    try:
        async with lab(*flags, "--kubeconfig", str(tmp_path / "kubeconfig")) as (_, kubeconfig):
            second = '--overrides={"spec": {"schedulerName": "second"}}'
            await kubectl(kubeconfig, "run", "p", "--image=any", second)
            await kubectl(kubeconfig, "wait", "pod/p", "--for=condition=Ready", "--timeout=60s")
            assert (
                await kubectl(kubeconfig, "get", "pod", "p", "-o", "jsonpath={.spec.nodeName}") == "node-0002"
            )
    finally:
        await runner.cleanup()
    assert "this-machine" in asked


@pytest.mark.needs("kubectl")
async def test_the_demo_shows_its_kubeconfig_on_a_small_terminal_and_leaves_nothing() -> None:
    master, slave = pty.openpty()
    os.set_blocking(master, False)
    process = await asyncio.create_subprocess_exec(
        *[*COMMAND, "demo", "--speed", "50"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "COLUMNS": "80", "LINES": "24", "TERM": "xterm"},
        start_new_session=True,
    )
    os.close(slave)
    shown = ""

    def read() -> str:
        nonlocal shown
        try:
            shown += os.read(master, 1 << 16).decode(errors="replace")
        except OSError:
            pass
        return shown

    try:
        await until(lambda: "export KUBECONFIG=" in read() and "Ctrl-C ends" in shown, "the KUBECONFIG", 90)
        found = re.search(r"D=(/\S+?/colocate-demo-\w+)", shown)
        assert found, shown[-2000:]
        described = await kubectl(f"{found[1]}/kubeconfig", "describe", "node", "this-machine")
        assert [line.split() for line in described.splitlines() if line.strip().startswith("mock/gpu")] == [
            ["mock/gpu:", "10"],
            ["mock/gpu:", "10"],
            ["mock/gpu", "2", "2"],
        ]
        assert "Failed to get lease" not in described
        process.send_signal(signal.SIGINT)
        await until(lambda: read() is not None and process.returncode is not None, "the end of the demo", 60)
        assert process.returncode == 0
        assert left_behind(found[1], process.pid) == []
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(master)
        if "found" in locals() and found:
            shutil.rmtree(found[1], ignore_errors=True)


@asynccontextmanager
async def lab_in(folder: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, Path]]:
    """A lab whose own folder is made in this one, as TMPDIR says."""
    process = await asyncio.create_subprocess_exec(
        *[*COMMAND, "lab", "--nodes", "0"],
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        assert line.startswith("export KUBECONFIG="), line
        ready = (await process.stdout.readline()).decode()
        assert ready == "# the cluster is ready: 1 node; Ctrl-C stops it and leaves nothing behind\n"
        yield process, Path(line.strip().removeprefix("export KUBECONFIG=")).parent
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def test_the_next_start_clears_what_a_killed_lab_left_and_touches_no_other(short: Path) -> None:
    planted = short / "colocate-lab-planted"
    planted.mkdir()
    (planted / "lock").write_text("../../../etc")
    elsewhere = short / "elsewhere"
    elsewhere.mkdir()
    (short / "colocate-lab-link").symlink_to(elsewhere)
    async with lab_in(short) as (alive, its_folder):
        async with lab_in(short) as (killed, left):
            group = Path(f"/sys/fs/cgroup/memory/colocate-lab-{killed.pid}")
            with_groups = os.geteuid() == 0 and group.parent.is_dir()
            if with_groups:
                group.mkdir()  # As if it had run pods.
            killed.kill()
            await killed.wait()
            assert left.exists()
        async with lab_in(short):
            assert not left.exists()
            assert not group.exists()
            assert its_folder.exists()
            assert alive.returncode is None
            assert not planted.exists()
            assert elsewhere.exists()
    assert not its_folder.exists()
