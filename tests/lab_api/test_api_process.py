"""The server as a process of its own: it is killed, comes back, and its clients notice but a gap."""

import asyncio
import base64
import os
import signal
import ssl
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from .samples import CONFIG_MAPS, config_map


async def start(folder: Path, *words: str) -> Process:
    """Start a server and wait until it serves."""
    options = ("--state", str(folder / "state"), "--kubeconfig", str(folder / "config"), *words)
    temporary = folder / "temporary"
    temporary.mkdir(exist_ok=True)
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "colocate.lab.api", *options],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=PIPE,
        stderr=PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(60):
        assert (await process.stdout.readline()).decode().strip() == f"export KUBECONFIG={folder / 'config'}"
    return process


def read_config(folder: Path) -> tuple[str, ssl.SSLContext]:
    """Where a kubeconfig leads, and what to show there."""
    config: Any = yaml.safe_load((folder / "config").read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    context = ssl.create_default_context(
        cadata=base64.b64decode(cluster["certificate-authority-data"]).decode()
    )
    pem = base64.b64decode(user["client-certificate-data"]) + base64.b64decode(user["client-key-data"])
    (folder / "client.pem").write_bytes(pem)
    context.load_cert_chain(folder / "client.pem")
    return cluster["server"], context


async def test_state_and_credentials_survive_kill_9(tmp_path: Path) -> None:
    first = await start(tmp_path)
    url, context = read_config(tmp_path)
    async with aiohttp.ClientSession() as session:
        for number in range(20):
            body = config_map(f"c{number}")
            async with session.post(f"{url}{CONFIG_MAPS}", json=body, ssl=context) as response:
                assert response.status == 201
    first.send_signal(signal.SIGKILL)
    await first.communicate()
    assert list((tmp_path / "temporary").iterdir()) == []
    again = await start(tmp_path, "--port", url.rpartition(":")[2])
    listing = f"{url}{CONFIG_MAPS}"
    async with aiohttp.ClientSession() as session, session.get(listing, ssl=context) as response:
        assert len((await response.json())["items"]) == 20
    again.terminate()
    await again.communicate()
    assert again.returncode == 0


async def test_what_the_user_can_mend_is_told_in_one_sentence(tmp_path: Path) -> None:
    process = await start(tmp_path)
    second = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "colocate.lab.api", "--state", str(tmp_path / "state"), stderr=PIPE, stdout=PIPE
    )
    _, error = await second.communicate()
    assert second.returncode == 2
    assert "is in use by another process" in error.decode()
    assert "Traceback" not in error.decode()
    process.terminate()
    await process.communicate()


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
async def test_it_leaves_nothing_behind(tmp_path: Path, stop: signal.Signals) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "colocate.lab.api", stdout=PIPE, stderr=PIPE
    )
    assert process.stdout is not None
    path = Path((await process.stdout.readline()).decode().strip().partition("=")[2])
    assert path.exists()
    process.send_signal(stop)
    _, error = await process.communicate()
    assert (process.returncode, error) == (0, b"")
    assert not path.parent.exists()
