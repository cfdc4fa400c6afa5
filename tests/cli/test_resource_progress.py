"""The line that moves while a resource is being removed fits every terminal."""

import fcntl
import io
import os
import pty
import struct
import termios
from collections.abc import Iterator
from typing import TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.cli.resource_progress import Progress, fitting
from colocate.devices.extended_resources import ExtendedResource, ResourceState
from colocate.devices.resources.steps import WaitingStep, Watching

_END = "\x1e"


def stale(name: str, remaining: float) -> ExtendedResource:
    return ExtendedResource(
        node="n1",
        name=name,
        capacity=2,
        allocatable=0,
        requested=0,
        holders=(),
        state=ResourceState.STALE,
        certain=True,
        reason="its plugin has gone",
        remaining=remaining,
    )


class Screen:
    """A terminal of so many columns, and what is written to it."""

    def __init__(self, columns: int) -> None:
        self._master, slave = pty.openpty()
        self.out: TextIO = os.fdopen(slave, "w", encoding="utf-8")
        self.resize(columns)

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self.out.fileno(), termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def moves(self) -> list[str]:
        """What the line was, each time that it was written since the last question."""
        self.out.write(_END)  # A terminal hands on what it has piece by piece.
        self.out.flush()
        seen = b""
        while not seen.endswith(_END.encode()):
            seen += os.read(self._master, 1 << 16)
        return seen.decode().removesuffix(_END).split("\r\x1b[K")[1:]

    def close(self) -> None:
        self.out.close()
        os.close(self._master)


@pytest.fixture
def screen() -> Iterator[Screen]:
    made = Screen(80)
    yield made
    made.close()


def test_on_80_columns_the_line_has_room_for_all_of_its_words(screen: Screen) -> None:
    Progress(screen.out)(WaitingStep(stale("example.com/fan", 298.0), 2.0))
    [line] = screen.moves()
    assert line.endswith("░ at most 4m58s until the kubelet forgets example.com/fan")
    assert len(line) < 80


def test_a_terminal_that_is_resized_gets_a_line_that_fits(screen: Screen) -> None:
    progress = Progress(screen.out)
    for columns in (200, 80, 40, 12, 3, 80):
        screen.resize(columns)
        progress(WaitingStep(stale(f"example.com/{'long' * 15}", 298.0), 2.0))
        progress(Watching(3.0))
        assert all(len(line) < columns for line in screen.moves())


def test_a_terminal_that_does_not_know_its_width_is_taken_for_a_usual_one(screen: Screen) -> None:
    screen.resize(0)
    Progress(screen.out)(WaitingStep(stale(f"example.com/{'long' * 15}", 298.0), 2.0))
    [line] = screen.moves()
    assert len(line) == 79


def test_where_there_is_no_terminal_a_line_is_written_now_and_then_and_whole() -> None:
    out = io.StringIO()
    progress = Progress(out)
    for second in range(0, 62, 2):
        progress(WaitingStep(stale("example.com/fan", 298.0 - second), float(second)))
    assert out.getvalue().splitlines() == [
        f"at most {left} until the kubelet forgets example.com/fan" for left in ("4m58s", "4m28s", "3m58s")
    ]


@given(st.floats(-1, 2), st.text(st.characters(min_codepoint=33, max_codepoint=126)), st.integers(0, 300))
def test_any_line_fits_and_says_as_much_as_it_can(done: float, words: str, width: int) -> None:
    line = fitting(done, words, width)
    assert len(line) <= max(0, width - 1)
    if width >= len(words) + 10:
        assert line.endswith(words)
