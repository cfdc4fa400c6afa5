"""Log lines that cannot be written, and those that would steer the terminal that they are written to."""

import errno
import gc
import io
import os
from collections.abc import Iterator

import pytest
import structlog

from colocate import telemetry
from colocate.telemetry import LOG_LINES_LOST, Event


class Full(io.StringIO):
    """Standard error, redirected to a disk that is full."""

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(autouse=True)
def configured() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def test_a_log_on_a_full_disk_stops_nobody_and_is_counted() -> None:
    telemetry.configure_logs("json", "info", Full())
    before = LOG_LINES_LOST._value.get()
    telemetry.logger().error(Event.MEMORY_STATE_UNSTORED, reason="no space left on device")
    assert LOG_LINES_LOST._value.get() == before + 1


def test_logs_that_are_dropped_leave_their_stream_alone() -> None:
    class Counted(io.StringIO):
        flushed = 0

        def flush(self) -> None:
            self.flushed += 1

    stream = Counted()
    telemetry.configure_logs("json", "info", stream)
    structlog.reset_defaults()
    gc.collect()
    assert stream.flushed == 0


@pytest.mark.parametrize("said", ["\x1b[2J", "\x9b31m", "a b\x1b]0;title\x07", "\u202e", "first\nsecond"])
def test_what_a_server_says_steers_no_terminal_that_shows_the_log(said: str) -> None:
    shown = io.StringIO()
    telemetry.configure_logs("text", "info", shown)
    telemetry.logger().error(Event.USAGE_FAILED, signal="cpu", error=said, some=[said])
    [line, end] = shown.getvalue().split("\n")
    assert line.isprintable()
    assert f"error={said!r}" in line
    assert end == ""


def test_an_error_with_an_escape_in_its_words_steers_no_terminal_either() -> None:
    shown = io.StringIO()
    telemetry.configure_logs("text", "info", shown)
    telemetry.logger().error(Event.USAGE_FAILED, exc_info=ValueError("\x1b[2J"))
    lines = shown.getvalue().split("\n")
    assert "ValueError: \\x1b[2J" in lines
    assert all(map(str.isprintable, lines))
