"""How the demo is told: what was skipped is not counted as having worked, and long sentences are continued."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from colocate.cli.demo import Story
from colocate.lab.demo import Demo
from colocate.lab.demo_commands import DemoSkipped


def pretended(root: Path) -> Demo:
    """A demo that has done nothing: what its board needs, and no more."""
    status = SimpleNamespace(capacity={}, allocatable={})
    return cast(
        Demo,
        SimpleNamespace(
            root=root,
            kubelet=SimpleNamespace(status=status),
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
