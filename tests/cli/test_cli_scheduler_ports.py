"""The ports of a running scheduler, attacked by a user of its machine; and the token that keeps it out."""

import asyncio
import json
import stat
from pathlib import Path

import aiohttp
import pytest
import yaml
from tests.cli.running import COMMAND, colocate
from tests.cli.test_cli_scheduler_questions import NAMES, Serving, serving
from tests.scheduler.asking import POD, question
from tests.support.crowds import allow_files, crowd
from tests.support.prometheus import free_port
from tests.support.waiting import until

TOKEN = "a/token+with&letters"
SHOWN = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(autouse=True)
def many_files() -> None:
    allow_files(3000)


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


async def asked(scheduler: Serving) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{scheduler.url}/prioritize", data=question(*NAMES), headers=SHOWN) as answer,
    ):
        return answer.status


async def scraped(port: int) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as answer:
        assert answer.status == 200
        return await answer.text()


async def test_1010_idle_sockets_on_the_metrics_port_stop_neither_the_extender_nor_scrapes(
    tmp_path: Path,
) -> None:
    port = free_port("127.0.0.1")
    metrics = {"address": f"127.0.0.1:{port}"}
    async with serving(tmp_path, files=1024, metrics=metrics) as scheduler, crowd(port) as strangers:
        await strangers.come(1010)
        for _ in range(3):
            await strangers.come(50)
            assert await asked(scheduler) == 200
            assert 'colocate_extender_requests_total{outcome="ok",verb="prioritize"}' in await scraped(port)
            # Not by and by, as those who send nothing in time go.
            assert len(list(Path(f"/proc/{scheduler.process.pid}/fd").iterdir())) < 512
        await until(lambda: strangers.left() <= 32, "the cap of one address to be kept")
        text = await scraped(port)
        assert 'colocate_http_connections_closed_total{reason="made room",server="metrics"}' in text


async def test_a_process_that_may_open_few_files_has_fewer_places_and_goes_on(
    tmp_path: Path, token_file: Path
) -> None:
    def server(port: int) -> dict[str, object]:
        return {"address": f"127.0.0.1:{port}", "callers": {"tokenFile": str(token_file)}}

    port = free_port("127.0.0.1")
    async with (
        serving(tmp_path, files=160, server=server(port)) as scheduler,
        crowd(port) as strangers,
    ):
        scheduler.url = f"http://127.0.0.1:{port}"
        await strangers.come(400)
        for _ in range(3):
            assert await asked(scheduler) == 200


async def test_a_local_user_without_the_token_learns_nothing_and_plants_nothing(
    tmp_path: Path, token_file: Path
) -> None:
    port = free_port("127.0.0.1")
    settings = {"address": f"127.0.0.1:{port}", "callers": {"tokenFile": str(token_file)}}
    async with serving(tmp_path, server=settings) as scheduler:
        scheduler.url = f"http://127.0.0.1:{port}"
        async with aiohttp.ClientSession() as session:
            for number in range(20):
                pod = POD | {"metadata": POD["metadata"] | {"uid": f"phantom-{number}"}}
                body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": list(NAMES)})
                async with session.post(f"{scheduler.url}/prioritize", data=body) as answer:
                    assert answer.status == 401
        for question_ in ("decisions", "top"):
            refused = await colocate("scheduler", question_, "--url", scheduler.url)
            assert (refused.code, "--token-file" in refused.err) == (1, True)
        shown = ("--url", scheduler.url, "--token-file", str(token_file))
        assert json.loads((await colocate("scheduler", "decisions", "-o", "json", *shown)).out) == []
        told = await colocate("scheduler", "top", "-o", "json", *shown)
        assert all(row["unseen_pods"] == 0 for row in json.loads(told.out))


async def test_kube_config_puts_the_token_into_the_address_and_tells_only_who_asked_for_it(
    tmp_path: Path, token_file: Path
) -> None:
    words = ("scheduler", "kube-config", "--url", "http://extender:8890", "--token-file", token_file)
    ended = await colocate(*words)
    assert ended.code == 0
    url = yaml.safe_load(ended.out)["extenders"][0]["urlPrefix"]
    assert url == "http://scheduler:a%2Ftoken%2Bwith%26letters@extender:8890"
    assert ended.err == "note: urlPrefix has the extender's token: keep it secret\n"

    written = tmp_path / "scheduler.yaml"
    ended = await colocate(*words, "--write", written)
    assert (ended.code, ended.out, ended.err) == (0, "", "")
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    assert yaml.safe_load(written.read_text())["extenders"][0]["urlPrefix"] == url


async def test_a_shells_own_file_for_the_token_is_closed_to_others_before_it_is_written(
    tmp_path: Path, token_file: Path
) -> None:
    redirected = tmp_path / "scheduler.yaml"
    with redirected.open("w") as output:
        redirected.chmod(0o644)
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            *("scheduler", "kube-config", "--token-file", str(token_file)),
            stdout=output,
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await process.communicate()
    assert process.returncode == 0
    assert said.decode().endswith("keep it secret; the file's mode is now 0600\n")
    assert stat.S_IMODE(redirected.stat().st_mode) == 0o600
    assert "scheduler:a%2Ftoken" in redirected.read_text()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--url", "http://me:hidden@extender:8890", "--token-file", "TOKEN"), "leave one out"),
        (("--url", "http://me:hidden@extender:8890", "--ca-file", "/ca"), "uses no certificates"),
        (("--url", "ftp://me:hidden@extender"), "kube-scheduler cannot use the extender's address"),
        (("--token-file", "/nowhere/token"), "--token-file: /nowhere/token cannot be read"),
    ],
)
async def test_no_mistake_shows_a_password(token_file: Path, flags: tuple[str, ...], said: str) -> None:
    words = [str(token_file) if word == "TOKEN" else word for word in flags]
    ended = await colocate("scheduler", "kube-config", *words)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
    assert "hidden" not in ended.err
    assert TOKEN not in ended.err


async def test_an_address_without_a_token_is_warned_of() -> None:
    ended = await colocate("scheduler", "kube-config", "--url", "http://extender:8890")
    assert ended.code == 0
    assert ended.err.startswith("warning: urlPrefix has no token, but the extender asks for one by default")
