"""`colocate cpus status`, `explain CONTAINER`, `off` and `on` against a placer that runs."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from colocate.cpus.placer.report import placer_service
from colocate.model.pod import QosClass
from colocate.wire import control_socket as control
from tests.cli.running import colocate
from tests.placer.fake_runtime import GIB, resources
from tests.placer.placing import PlacingTest


@asynccontextmanager
async def node(folder: Path) -> AsyncIterator[tuple[PlacingTest, Path]]:
    """A node with a database on CPUs of its own and a web server."""
    test = PlacingTest(folder)
    await test.runtime.connect(test.placer)
    database = test.runtime.sandbox("db", annotations={"colocate.dev/cpus": "exclusive"})
    await test.runtime.create(test.placer, database, "main", resources(4000, 4000, GIB))
    web = test.runtime.sandbox("web", QosClass.BURSTABLE)
    await test.runtime.create(test.placer, web, "main", resources(1500))
    socket = folder / "cpus.sock"
    async with control.serving(socket, placer_service(test.placer, "1x2x2x2x2")):
        upkeep = asyncio.create_task(test.upkeep.run())
        try:
            yield test, socket
        finally:
            upkeep.cancel()


async def test_status_and_explain_tell_where_containers_are_and_why(tmp_path: Path) -> None:
    async with node(tmp_path) as (test, socket):
        shown = await colocate("cpus", "status", "--socket", socket)
        assert shown.code == 0, shown.err
        assert "CCX 0  ■■ ■■   0-1,8-9" in shown.out
        assert "default/db/main    4      CCX 0 alone: 0-1,8-9   0" in shown.out
        assert "2 of 4 CCXs are completely free." in shown.out
        told = json.loads((await colocate("cpus", "status", "--socket", socket, "-o", "json")).out)
        assert {one["pod"]: one["cpus"] for one in told["containers"]} == {
            "db": "0-1,8-9",
            "web": "2-3,10-11",
        }
        why = await colocate("cpus", "explain", "db/main", "--socket", socket)
        assert why.out.startswith("It gets 4 CPUs of its own: 0-1,8-9.\n")
        own = next(
            own
            for own, each in test.runtime.containers.items()
            if "web" in test.runtime.sandboxes[each.about.sandbox_id].name
        )
        assert "It shares CCX 1" in (await colocate("cpus", "explain", own, "--socket", socket)).out
        both = await colocate("cpus", "explain", "main", "--socket", socket)
        assert both.code == 2
        assert "2 containers are called 'main': default/db/main, default/web/main" in both.err
        none = await colocate("cpus", "explain", "other", "--socket", socket)
        assert none.err == "colocate: there is no container 'other' here; 'colocate cpus status' lists them\n"


async def test_status_tells_why_no_container_is_placed(tmp_path: Path) -> None:
    test = PlacingTest(tmp_path)
    test.blind = "there is no /sys"
    await test.again()
    async with node_again(test) as socket:
        shown = await colocate("cpus", "status", "--socket", socket)
        assert shown.code == 0, shown.err
        assert shown.out == (
            "No container is placed, because the CPU topology cannot be read: there is no /sys\n"
            "The placer tries again at least once a minute; containers start meanwhile, on all CPUs.\n"
        )
        told = json.loads((await colocate("cpus", "status", "--socket", socket, "-o", "json")).out)
        assert (told["blind"], told["connected"]) == ("there is no /sys", True)


async def test_off_gives_every_container_all_cpus_and_on_places_them_again(tmp_path: Path) -> None:
    async with node(tmp_path) as (test, socket):
        before = {own: test.runtime.cpus(own) for own in test.runtime.containers}
        off = await colocate("cpus", "off", "--socket", socket)
        assert off.out == (
            "placement is switched off\neverything is restored: every container may run on all CPUs\n"
        )
        assert {test.runtime.cpus(own) for own in before} == {"0-15"}
        assert "Placement is switched off" in (await colocate("cpus", "status", "--socket", socket)).out
        await test.again()
        assert {test.runtime.cpus(own) for own in before} == {"0-15"}, "it outlasts a restart"
    async with node_again(test) as socket:
        assert (await colocate("cpus", "on", "--socket", socket)).out == "placement is switched on\n"
        await test.settle()
        assert {own: test.runtime.cpus(own) for own in before} == before


@asynccontextmanager
async def node_again(test: PlacingTest) -> AsyncIterator[Path]:
    socket = test.folder / "again.sock"
    async with control.serving(socket, placer_service(test.placer, "1x2x2x2x2")):
        yield socket


async def test_without_a_placer_and_without_a_name_the_remedy_is_told(tmp_path: Path) -> None:
    absent = await colocate("cpus", "status", "--socket", tmp_path / "none.sock")
    assert absent.code == 2
    assert absent.err == (
        f"colocate: no placer answers on {tmp_path}/none.sock; start one with 'colocate cri-proxy' or "
        "'colocate nri', or give its socket with --socket or COLOCATE_CPUS_SOCKET\n"
    )
    nothing = await colocate("cpus", "explain")
    assert "name a CONTAINER of this node, or give --request" in nothing.err
