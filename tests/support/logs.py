"""What is logged while something runs."""

import logging
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import structlog
from structlog.testing import capture_logs

from colocate.telemetry import Event

Logs = list[MutableMapping[str, Any]]


@contextmanager
def logged() -> Iterator[Logs]:
    """What the body logs, which tests are otherwise quiet about."""
    quiet = structlog.get_config()["wrapper_class"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    try:
        with capture_logs() as logs:
            yield logs
    finally:
        structlog.configure(wrapper_class=quiet)


def told(logs: Logs, event: Event) -> Logs:
    """What was logged of one event."""
    return [one for one in logs if one["event"] == event]
