"""How the demo is told: what was skipped is not counted as having worked, and long sentences are continued."""

import io
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console, ConsoleDimensions

from colocate.cli.demo import Story, continued
from colocate.lab.demo import Demo
from colocate.lab.demo_commands import DemoSkipped
from colocate.memory.agent.report import MemoryReport


def pretended(root: Path) -> Demo:
    """A demo that has done nothing: what its board needs, and no more."""
    status = SimpleNamespace(capacity={}, allocatable={})
    return cast(
        Demo,
        SimpleNamespace(
            root=root,
            kubelet=SimpleNamespace(status=status),
            kubeconfig=root / "kubeconfig",
            pods=list,
            node_loads=list,
            agent=None,
            load=None,
        ),
    )


def told(root: Path, *, terminal: bool = False, width: int = 60) -> tuple[Story, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=width, highlight=False, color_system=None)
    return Story(pretended(root), console, live=terminal), out


async def works() -> str:
    return "a sentence that is longer than the terminal is wide, so that it has to go on in another line"


async def cannot() -> str:
    raise DemoSkipped("no memory is offered; run the demo as root to see it")


@pytest.mark.parametrize(
    ("steps", "end"),
    [((works,), "Everything worked, in"), ((works, cannot), "1 of 2 steps worked, 1 skipped, in")],
)
async def test_what_was_skipped_is_marked_and_not_counted(steps: Any, end: str, tmp_path: Path) -> None:
    story, out = told(tmp_path)
    for step in steps:
        await story.step("A step", step)
    story.end(once=True)
    assert end in out.getvalue()
    assert ("– A step" in out.getvalue()) == (cannot in steps)
    assert ("skipped: no memory is offered; run the demo as root" in out.getvalue()) == (cannot in steps)


async def test_on_a_terminal_a_long_sentence_goes_on_below_itself(tmp_path: Path) -> None:
    story, out = told(tmp_path, terminal=True, width=40)
    await story.step("A step", works)
    lines = [line for line in out.getvalue().splitlines() if "sentence" in line or "terminal" in line]
    assert len(lines) >= 2
    assert all(line.startswith("  ") for line in lines)
    assert max(map(len, out.getvalue().splitlines())) <= 40 + len("\x1b[?25l")


async def test_on_a_terminal_of_another_size_the_story_is_told_again_and_fits(tmp_path: Path) -> None:
    story, out = told(tmp_path, terminal=True, width=100)
    with story.shown():
        await story.step("A step", works)
        story.end(once=False)
        story._console.size = ConsoleDimensions(50, 18)
        drawn = len(out.getvalue())
        story.refresh()
        after = out.getvalue()[drawn:]
        story.refresh()
    shown = plain(after.partition("\x1b[2J")[2])
    assert shown[0] == "✓ A step  0.0 s"
    assert max(map(len, shown)) <= 50
    frame = shown[next(at for at, line in enumerate(shown) if line.startswith("╭")) :]
    assert len(frame) <= 18
    assert frame[-1] == "Ctrl-C ends the demo and leaves nothing behind."
    again = out.getvalue()[drawn + len(after) :]
    assert "\x1b[2J" not in again, "only once for every change"


def plain(text: str) -> list[str]:
    """The lines of a terminal's text, without colours and movements."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "").splitlines()


async def test_hints_can_be_pasted_whatever_the_width(tmp_path: Path) -> None:
    line = "  colocate scheduler top --url http://127.0.0.1:8890 --token-file $D/token   # a remark"
    for width in range(40, 120):
        parts = continued(line, width)
        assert max(map(len, parts)) <= width
        joined = "\n".join(parts).replace(" \\\n", " ")
        assert shlex.split(joined, comments=True) == shlex.split(line, comments=True)
    assert continued("A sentence that is long", 10) == ["A sentence that is long"]


@pytest.mark.parametrize("sold", [True, False])
async def test_what_the_demo_cannot_show_is_no_hint(sold: bool, tmp_path: Path) -> None:
    story, out = told(tmp_path)
    story._memory = cast(MemoryReport, SimpleNamespace()) if sold else None
    story.end(once=False)
    assert ("memory status" in out.getvalue()) == sold
    assert "scheduler top" not in out.getvalue()
    assert f"D={tmp_path}" in out.getvalue()
