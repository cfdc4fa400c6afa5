"""`colocate` itself: help, version, exit codes."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from tests.cli.running import COMMAND, PATIENCE, Ended, colocate
from tests.cluster.serving import Scripted

from colocate import __version__
from colocate.cli.main import GROUPS
from colocate.kubelet.checkpoint import render
from colocate.model.checkpoint import Checkpoint


async def test_alone_it_prints_its_help() -> None:
    ended = await colocate()
    assert ended.code == 0
    assert ended.out.startswith("usage: colocate")
    assert all(f"    {name}" in ended.out for name in GROUPS)


async def test_it_says_its_version() -> None:
    ended = await colocate("--version")
    assert (ended.code, ended.out) == (0, f"colocate {__version__}\n")


@pytest.mark.parametrize(
    ("typed", "told"), [("memry", "did you mean 'memory'?"), ("zzz", "'colocate --help' lists what there is")]
)
async def test_an_unknown_group_is_refused_with_the_nearest_or_the_help(typed: str, told: str) -> None:
    ended = await colocate(typed)
    assert ended.code == 2
    assert told in ended.err
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


async def in_shell(script: str, **environ: str) -> Ended:
    """Run a line of shell, in which $COLOCATE is the command."""
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", script),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "COLOCATE": " ".join(COMMAND), **environ},
    )
    async with asyncio.timeout(PATIENCE):
        out, err = await process.communicate()
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "$COLOCATE config example > /dev/full",
            "standard output: cannot be written (no space left on device)",
        ),
        ("$COLOCATE --help > /dev/full", "standard output: cannot be written (no space left on device)"),
        ("$COLOCATE config example >&-", "standard output: cannot be written (bad file descriptor)"),
        ("$COLOCATE checkpoint verify - <&-", "standard input: cannot be read (bad file descriptor)"),
    ],
)
async def test_a_stream_that_cannot_be_used_is_one_sentence_and_exit_code_2(
    script: str, said: str, unbuffered: str
) -> None:
    ended = await in_shell(script, PYTHONUNBUFFERED=unbuffered)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
    assert ended.err.count("\n") == 1


async def test_closed_streams_do_not_disturb_a_command_that_does_not_use_them(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint"
    file.write_bytes(render(Checkpoint((), {})))
    assert (await in_shell(f"$COLOCATE checkpoint verify {file} <&- 2>&-")).code == 0
    refused = await in_shell(f"$COLOCATE checkpoint verify {tmp_path / 'none'} <&- >&-")
    assert (refused.code, "the file does not exist" in refused.err) == (2, True)


@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-1", "utf-8"])
async def test_what_the_terminal_cannot_show_is_written_as_an_escape(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "grö\U0001f600ße"
    file.write_bytes(render(Checkpoint((), {})))
    script = f"$COLOCATE checkpoint verify '{file}' -o"
    for output in ("table", "json"):
        ended = await in_shell(f"{script} {output} | iconv -f {encoding} -t utf-8", PYTHONIOENCODING=encoding)
        assert ended.err == ""
        if output == "json":
            assert json.loads(ended.out)["file"] == str(file)
        else:
            assert ended.out.startswith("✓" if encoding == "utf-8" else "+")


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


STEERING = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\nthe cluster is fine"


async def test_a_server_that_sends_escape_sequences_steers_no_terminal() -> None:
    """An API server, and an extender, that refuse in words which would clear the screen and begin a line of ours."""
    async with Scripted().running() as server:
        server.say(403, json.dumps({"message": STEERING}).encode())
        server.say(403, STEERING.encode())
        for words in (
            ("resource", "list", "--server", server.url),
            ("scheduler", "explain", "pod", "--url", server.url),
        ):
            ended = await colocate(*words)
            assert ended.code in (1, 2)
            (line,) = (ended.out + ended.err).splitlines()
            assert line.isprintable()
            assert "\\x1b" in line
