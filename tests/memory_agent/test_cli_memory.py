"""`colocate memory` as an operator uses it, against an agent that runs."""

import json
from pathlib import Path

from colocate.cli.memory_status import WIDTH, drawn
from tests.cli.running import colocate, on_terminal
from tests.memory_agent.lab import MIB, memory_lab
from tests.support.waiting import until


async def test_status_explain_off_and_on() -> None:
    async with memory_lab() as lab:
        lab.configure(blockSize="64Mi", forecast={"kind": "instant"}, coolDown="1s")
        await lab.start_agent()
        await lab.until_blocks(3)
        lab.create_pod("batch", 3)
        await lab.until_running("batch")
        await lab.until_report(lambda report: bool(report.pods), "the pod in a turn")
        socket = ("--socket", lab.socket)

        shown = await colocate("memory", "status", *socket)
        assert shown.code == 0, shown.err
        assert "offered as test.com/colocation-memory" in shown.out
        assert "blocks of 64 MiB" in shown.out
        assert "colocation-memory/batch   3 " in shown.out
        assert "192 MiB" in shown.out

        terminal = (await on_terminal("memory", "status", *socket)).out
        bar, legend = terminal.splitlines()[1:3]
        assert legend.startswith(f"  {bar[1 : bar.index('m') + 1]}█\x1b[0m system"), (
            "in the colour that it explains"
        )
        plain = (await on_terminal("memory", "status", *socket, NO_COLOR="1")).out
        assert plain.splitlines()[2].startswith("  # system")
        assert max(map(len, plain.splitlines())) <= 80

        as_json = json.loads((await colocate("memory", "status", *socket, "-o", "json")).out)
        assert as_json["pods"][0]["limit"] == 192 * MIB
        parts = [as_json["bar"][name] for name in ("system", "online", "colocated", "debt", "published")]
        assert sum(parts) + as_json["bar"]["idle"] + as_json["bar"]["safety"] == as_json["bar"]["capacity"]

        why = await colocate("memory", "explain", *socket)
        assert "room for" in why.out
        assert "There is no debt." in why.out
        narrow = (await on_terminal("memory", "explain", *socket)).out
        assert max(map(len, narrow.splitlines())) <= 80

        off = await colocate("memory", "off", *socket)
        assert (off.code, off.err) == (0, "")
        assert "memory colocation is switched off" in off.out
        assert "everything is restored" in off.out
        assert lab.limit("batch") is None
        assert lab.healthy() == []
        assert "switched off" in (await colocate("memory", "status", *socket)).out

        on = await colocate("memory", "on", *socket)
        assert on.out.startswith("memory colocation is switched on; blocks come after the cool-down")
        assert (await colocate("memory", "on", *socket)).out == "memory colocation was on already\n"
        await until(lambda: lab.limit("batch") == 192 * MIB, "the limit again")
        await lab.until_blocks(3)
        assert await lab.stop_agent() == 0


async def test_an_agent_that_sells_no_memory_says_how_it_would(tmp_path: Path) -> None:
    async with memory_lab() as lab:
        lab.configure(enabled=False)
        await lab.start_agent()
        await until(lab.socket.exists, "the control socket")
        asked = await colocate("memory", "status", "--socket", lab.socket)
        assert asked.code == 2
        assert "set memory.enabled to true" in asked.err


def test_a_bar_is_as_wide_as_it_should_be_and_shows_every_part() -> None:
    parts = (("system", 1), ("online", 10**12), ("colocated", 5), ("published", 10**11))
    bar = drawn(parts, colours=False)
    assert len(bar) == WIDTH
    assert set(bar) == {"#", "O", "C", "p"}


async def test_off_without_an_agent_says_that_limits_stay(tmp_path: Path) -> None:
    off = await colocate("memory", "off", "--socket", tmp_path / "none.sock")
    assert off.code == 2
    assert "no agent answers" in off.err
    assert "only a running agent with memory.enabled restores the limits of pods" in off.err
