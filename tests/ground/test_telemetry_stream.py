"""Log lines that cannot be written."""

import errno
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
