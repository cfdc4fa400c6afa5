"""Free CCXs are told to the cluster, and strict pods go where one has room."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.clock import ManualClock, SystemClock
from colocate.cpus import (
    CpuAllocator,
    CpuRequest,
    FreeCcxs,
    announced_ccxs,
    announcement_of,
    why_not_strict,
)
from colocate.cpus.placer.part import PlacementPart
from colocate.cpus.placer.publication import INTERVAL, CcxPublication
from colocate.cpus.placer.section import CpuDefaults, CpusSection
from colocate.lab.api.resources import NODES as LAB_NODES
from colocate.lab.api.server import ApiServer
from colocate.model.cpu_shapes import HYGON, machine
from colocate.model.cpu_topology import FREE_CCXS
from colocate.model.values import Address
from colocate.telemetry import Event
from tests.cluster.serving import connect, new_server
from tests.placer.fake_runtime import GIB, resources
from tests.placer.placing import SECTION, PlacingTest, manual
from tests.support.logs import Logs, logged, told
from tests.support.rights import account_token, apply
from tests.support.waiting import until


def test_what_is_announced_is_read_again() -> None:
    allocator = CpuAllocator(machine(HYGON), SECTION.settings())
    assert announced_ccxs(announcement_of(allocator)) == FreeCcxs((8000,) * 16, ("default",))
    assert announced_ccxs(announcement_of(allocator, {"default", "not granted"})).default == ("default",)
    allocator.assign(CpuRequest(pod="p", container="c", cpu=3100))
    assert announced_ccxs(announcement_of(allocator)).free == (8000,) * 15 + (4500,), "rounded down"


@given(st.text(max_size=200) | st.binary(max_size=50).map(lambda data: data.decode("latin-1")))
def test_garbage_is_an_error_and_nothing_else(text: str) -> None:
    with suppress(ValueError):
        announced_ccxs(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"free": {"8000": 100000}}',
        '{"free": {"99999999999": 1}}',
        '{"free": {"8000": -1}}',
        '{"free": {"eight": 1}}',
        '{"free": ' + "[" * 9000,
        "x" * 20_000,
    ],
)
def test_lies_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        announced_ccxs(text)


@pytest.mark.parametrize(
    ("free", "together", "alone", "fits"),
    [
        ((8000, 4000), {"a": 8000}, {}, True),
        ((8000, 4000), {"a": 8001}, {}, False),
        ((8000, 4000), {"a": 4000, "b": 8000}, {}, True),
        ((8000, 4000), {"a": 5000, "b": 5000}, {}, False),
        ((8000,), {"a": 4000, "b": 4000}, {}, True),
        ((8000,), {"a": 8000}, {"init": 8000}, True),
        ((8000,), {"a": 1000}, {"init": 9000}, False),
        ((), {"a": 1}, {}, False),
    ],
)
def test_strict_containers_fit_together(
    free: tuple[int, ...], together: dict[str, int], alone: dict[str, int], fits: bool
) -> None:
    assert (why_not_strict(FreeCcxs(free), together, alone) == "") is fits


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    running = new_server(ManualClock())
    await running.start(tls=False)
    running.registry.create(LAB_NODES, "", {"metadata": {"name": "worker"}})
    yield running
    await running.stop()


def said(server: ApiServer, what: str = "free") -> Any:
    found = server.registry.find(LAB_NODES, "", "worker")
    assert found is not None
    text = found.body["metadata"].get("annotations", {}).get(FREE_CCXS)
    return None if text is None else json.loads(text).get(what)


async def test_the_node_says_what_is_free_with_few_writes_and_no_more_rights_than_those(
    server: ApiServer, tmp_path: Path
) -> None:
    apply(server, "placement/publish-rbac.yaml")
    test = manual(tmp_path)
    assert isinstance(test.clock, ManualClock)
    await test.runtime.connect(test.placer)
    async with connect(server.url, SystemClock(), token=account_token(server, "colocate-placer")) as client:
        publishing = asyncio.create_task(CcxPublication(client, "worker", test.keeper).run())
        await until(lambda: said(server) == {"4000": 4}, "the first word")
        version = server.registry.find(LAB_NODES, "", "worker")
        for name in "abc":
            await test.runtime.create(
                test.placer, test.runtime.sandbox(name), "main", resources(1000, 1000, GIB)
            )
        assert server.registry.find(LAB_NODES, "", "worker") == version, "not yet"
        for _ in range(4):
            await test.clock.advance(INTERVAL)
        await until(lambda: said(server) == {"4000": 3, "1000": 1}, "the news")
        assert said(server, "default") is None
        strict = CpuDefaults(namespaces={"default": "strict", "other": "strict"})
        await test.keeper.reconfigure(msgspec.structs.replace(test.section, defaults=strict))
        for _ in range(4):
            await test.clock.advance(INTERVAL)
        await until(lambda: said(server, "default") == ["default"], "who is strict by default")
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)
    assert said(server) is None, "who is gone says nothing"


def troubles(logs: Logs) -> int:
    return len(told(logs, Event.PLACEMENT_UNPUBLISHED))


class PublishingNode:
    """A placer's part of a process, whose kubeconfig is in the test's folder."""

    def __init__(self, folder: Path) -> None:
        self.kubeconfig = folder / "kubelet.conf"
        self.clock = ManualClock()
        self.section = CpusSection(
            publish=True,
            node="worker",
            kubeconfig=str(self.kubeconfig),
            topology="1x2x2x2x2",
            socket=folder / "cpus.sock",
            state_folder=folder / "state",
            metrics=Address("off"),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[PlacementPart]:
        part = PlacementPart(self.section, self.clock)
        part.begin()
        task = asyncio.create_task(part.run())
        try:
            yield part
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_kubeconfig_that_comes_later_is_found_without_a_restart(
    server: ApiServer, tmp_path: Path
) -> None:
    node = PublishingNode(tmp_path)
    with logged() as logs:
        async with node.running():
            await until(lambda: troubles(logs) == 1, "the trouble is told")
            server.write_kubeconfig(node.kubeconfig)
            await node.clock.advance(3 * INTERVAL)
            await until(lambda: said(server) is not None, "the annotation")


async def test_a_kubeconfig_that_is_mended_counts_at_once_after_a_reload(
    server: ApiServer, tmp_path: Path
) -> None:
    node = PublishingNode(tmp_path)
    node.kubeconfig.write_text("clusters: 7\n")
    with logged() as logs:
        async with node.running() as part:
            await until(lambda: troubles(logs) == 1, "the trouble is told")
            server.write_kubeconfig(node.kubeconfig)
            assert await part.reload(node.section) == []
            await until(lambda: said(server) is not None, "the annotation")
            node.kubeconfig.write_text("clusters: 7\n")
            assert await part.reload(node.section) == []
            await until(lambda: troubles(logs) == 2, "it is told again")
            assert said(server) is not None, "what works stays in use"


async def test_publishing_is_switched_off_and_on_by_a_reload(server: ApiServer, tmp_path: Path) -> None:
    node = PublishingNode(tmp_path)
    server.write_kubeconfig(node.kubeconfig)
    quiet = msgspec.structs.replace(node.section, publish=False)
    node.section = quiet
    async with node.running() as part:
        assert await part.reload(msgspec.structs.replace(quiet, publish=True)) == []
        await until(lambda: said(server) is not None, "the annotation")
        assert await part.reload(quiet) == []
        await until(lambda: said(server) is None, "taken away")


async def test_a_cluster_that_is_away_stops_nothing(tmp_path: Path) -> None:
    test = PlacingTest(tmp_path)
    await test.runtime.connect(test.placer)
    async with connect("http://127.0.0.1:9", SystemClock()) as client:
        publishing = asyncio.create_task(CcxPublication(client, "worker", test.keeper).run())
        assert await test.runtime.create(
            test.placer, test.runtime.sandbox("db"), "main", resources(4000, 4000, GIB)
        )
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)
