"""The ladder's rungs by name, lowest first."""

from enum import StrEnum


class Rung(StrEnum):
    """One way to give memory back. They are tried in this order, and undone in the other."""

    WITHDRAW = "withdraw"
    """Free blocks are no longer offered."""
    RECLAIM = "reclaim"
    """Page cache of colocated pods is dropped."""
    THROTTLE = "throttle"
    """Colocated pods are held where they are: who grows beyond, waits."""
    FAR = "far"
    """Their pages go to far NUMA nodes."""
    EVICT = "evict"
    """They are evicted through the API."""
    RECREATE = "recreate"
    """Bare pods that allow it are created again on another node."""


RUNGS = tuple(Rung)


def height(rung: Rung | None) -> int:
    """How far up; -1 on the ground."""
    return -1 if rung is None else RUNGS.index(rung)
