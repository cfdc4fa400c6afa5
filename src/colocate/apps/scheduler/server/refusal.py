"""A request that is turned away: with which status, and the one sentence that its caller reads."""

from enum import StrEnum


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
