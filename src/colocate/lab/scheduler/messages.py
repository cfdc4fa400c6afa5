"""The scheduler's messages about pods, word for word as in kube-scheduler 1.34. Pure."""

from collections import Counter
from collections.abc import Iterable

NO_NODES = "no nodes available to schedule pods"
GATED = "Scheduling is blocked due to non-empty scheduling gates"
NEVER = "preemption: not eligible due to preemptionPolicy=Never."
ALREADY_PREEMPTING = "preemption: not eligible due to terminating pod on the nominated node."
NOT_HELPFUL = "Preemption is not helpful for scheduling"
NO_VICTIMS = "No preemption victims found for incoming pod"
_NO_CLAIMS = "no new claims to deallocate"
"""The message of a plugin without a counterpart here, which precedes every failed preemption."""


def unavailable(nodes: int, reasons: Iterable[str]) -> str:
    """Why no node fits: each reason with its count, sorted as text, so that 10 comes before 2."""
    counted = sorted(f"{count} {reason}" for reason, count in Counter(reasons).items())
    listed = f" {', '.join(counted)}." if counted else ""
    return f"0/{nodes} nodes are available:{listed}"


def failed(nodes: int, reasons: Iterable[str], preemption: str = "") -> str:
    """The message of a FailedScheduling event; a successful preemption is not mentioned."""
    said = unavailable(nodes, reasons)
    return f"{said} {_NO_CLAIMS}, {preemption}" if preemption else said


def preemption_failed(nodes: int, reasons: Iterable[str]) -> str:
    return f"preemption: {unavailable(nodes, reasons)}"


def scheduled(namespace: str, name: str, node: str) -> str:
    return f"Successfully assigned {namespace}/{name} to {node}"


def preempted(by_uid: str, node: str) -> str:
    return f"Preempted by pod {by_uid} on node {node}"


def preempting(scheduler_name: str) -> str:
    return f"{scheduler_name}: preempting to accommodate a higher priority pod"
