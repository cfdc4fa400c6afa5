"""`colocate` itself: help, version, exit codes."""

import asyncio
import sys
from pathlib import Path

from tests.cli.running import COMMAND, PATIENCE, colocate

from colocate import __version__
from colocate.cli.main import GROUPS


async def test_alone_it_prints_its_help() -> None:
    ended = await colocate()
    assert ended.code == 0
    assert ended.out.startswith("usage: colocate")
    assert all(f"    {name}" in ended.out for name in GROUPS)


async def test_it_says_its_version() -> None:
    ended = await colocate("--version")
    assert (ended.code, ended.out) == (0, f"colocate {__version__}\n")


async def test_an_unknown_group_is_refused_with_those_that_exist() -> None:
    ended = await colocate("memry")
    assert ended.code == 2
    assert "'agent'" in ended.err
    assert "Traceback" not in ended.err


async def test_a_reader_that_has_had_enough_is_no_error() -> None:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "config", "example", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout._transport.close()  # type: ignore[attr-defined]
    async with asyncio.timeout(PATIENCE):
        assert await process.stderr.read() == b""
        assert await process.wait() in (0, 141)


async def test_the_agent_does_not_load_what_only_others_need() -> None:
    """Every node pays for what the agent loads; the embedded cluster and the like are for people."""
    script = (
        "import sys\n"
        "from colocate.cli.main import _parser\n"
        "_parser('agent')\n"
        "rest = ('aiohttp', 'numpy', 'colocate.lab', 'colocate.testing', 'colocate.cli.demo')\n"
        "print([name for name in sys.modules if name.startswith(rest)])\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parent
    )
    async with asyncio.timeout(PATIENCE):
        out, _ = await process.communicate()
    assert out == b"[]\n"
