"""How a request ends: what is counted of it; and, where it is turned away, with which status and what sentence."""

import time
from enum import StrEnum
from functools import cache

from prometheus_client import Counter, Histogram

from colocate import telemetry


class RequestOutcome(StrEnum):
    """How a request ended; a label of the metrics."""

    OK = "ok"
    UNREADABLE = "unreadable"
    TOO_LARGE = "too large"
    UNAUTHORIZED = "unauthorized"
    UNKNOWN = "unknown"
    """No such path, or not with this method."""
    BUSY = "busy"
    SLOW = "slow"
    """The caller did not send its body, or did not read its answer, in time."""
    GONE = "gone"
    """The caller hung up."""
    FAULT = "fault"
    """Of our own; the log has it."""


class RequestRefused(Exception):
    """Ends the handling of a request."""

    def __init__(self, status: int, outcome: RequestOutcome, sentence: str, **headers: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.outcome = outcome
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def count_request(verb: str, outcome: RequestOutcome, started: float) -> None:
    """Count a request that has ended now."""
    counted, timed = _counters(verb, outcome)
    counted.inc()
    timed.observe(time.perf_counter() - started)


@cache
def _counters(verb: str, outcome: RequestOutcome) -> tuple[Counter, Histogram]:
    """Of one verb and one outcome; both are few, and to look them up costs more than to count."""
    return telemetry.EXTENDER_REQUESTS.labels(verb, outcome), telemetry.EXTENDER_REQUEST_SECONDS.labels(verb)
