"""Against a server in another process, over TLS, by its kubeconfig: killed, restarted, overtaken."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from colocate.cluster.changes import Key
from colocate.cluster.client import Client
from colocate.cluster.connection import Flags, find
from colocate.cluster.watch_cache import WatchSettings
from tests.lab_api.samples import config_map

from .following import MAPS, following
from .serving import environment, free_port

QUICK = WatchSettings(first_pause=0.05, last_pause=0.2)


@asynccontextmanager
async def process(folder: Path, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """A server that keeps its state in a file, until killed."""
    running = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "colocate.lab.api", "--port", str(port)),
        *("--state", str(folder / "state"), "--kubeconfig", str(folder / "kubeconfig")),
        stdout=asyncio.subprocess.PIPE,
        env=environment(),
    )
    try:
        assert running.stdout is not None
        assert await running.stdout.readline(), "the server ended at once"
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_server_that_is_ended_and_started_again_is_followed_on(
    tmp_path: Path, how: signal.Signals
) -> None:
    port = free_port()
    async with process(tmp_path, port) as first:
        connection = find(Flags(kubeconfig=tmp_path / "kubeconfig"), {})
        async with Client(connection) as client, following(client, QUICK) as it:
            await client.create(MAPS, config_map("a"))
            await client.create(MAPS, config_map("b"))
            await it.told("Added a", "Added b")
            first.send_signal(how)
            await first.wait()
            async with process(tmp_path, port):
                async with Client(connection) as other:
                    await other.create(MAPS, config_map("c"))
                    await other.delete(MAPS, "a")
                while Key("default", "c") not in it.cache or Key("default", "a") in it.cache:
                    await it.cache.changed.beyond(it.cache.changed.count)
                assert sorted(it.listener.take()) == ["Added c", "Deleted a"]
                assert [key.name for key, _ in it.cache.items()] == ["b", "c"]
