"""The pods that wait for a node: which is next, and when the others are tried again. Knows no clock.

A pod that fits nowhere is put aside until the cluster changes in a way that may clear what stood in its way,
and even then waits out its back-off. One that failed for a fault of ours waits out its back-off alone.
"""

import heapq
import itertools
from enum import Enum, auto

from colocate.lab.scheduler.facts import SchedulablePod
from colocate.lab.scheduler.filters import FilterCause

FIRST_BACKOFF = 1.0
LONGEST_BACKOFF = 10.0
LONGEST_WAIT = 300.0
"""Whoever was put aside is tried again after so long, whether or not anything has changed."""

NOW = float("-inf")
OUTDATED = -1


class QueuePlace(Enum):
    """Where a waiting pod is."""

    ACTIVE = auto()
    IN_HAND = auto()
    BACKING_OFF = auto()
    ASIDE = auto()
    GATED = auto()


class WaitingPod:
    """One pod that waits."""

    __slots__ = ("attempts", "cause", "number", "place", "pod", "ready", "taken_at", "ticket")

    def __init__(self, pod: SchedulablePod, number: int) -> None:
        self.pod = pod
        self.number = number
        """The order in which pods came."""
        self.attempts = 0
        self.place = QueuePlace.GATED
        self.cause = FilterCause(0)
        self.ready = NOW
        """When its back-off is over."""
        self.taken_at = 0
        self.ticket = 0
        """Only the newest entry of a pod in a heap counts."""


class Queue:
    """Waiting pods by uid: the highest priority first, then the oldest."""

    def __init__(self, first: float = FIRST_BACKOFF, longest: float = LONGEST_BACKOFF) -> None:
        self._first = first
        self._longest = longest
        self._waiting: dict[str, WaitingPod] = {}
        self._aside: dict[str, WaitingPod] = {}
        self._active: list[tuple[int, int, int, WaitingPod]] = []
        self._timed: list[tuple[float, int, int, WaitingPod]] = []
        self._numbers = itertools.count()
        self._tickets = itertools.count(1)
        self._events = 0
        self._last: dict[FilterCause, int] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, uid: str) -> bool:
        return uid in self._waiting

    def uids(self) -> set[str]:
        return set(self._waiting)

    def put(self, pod: SchedulablePod, changed: bool, now: float) -> None:
        """A pod is new, or is to be known in a newer version; `changed` where its wishes may have, too."""
        waiting = self._waiting.get(pod.uid)
        if waiting is None:
            waiting = self._waiting[pod.uid] = WaitingPod(pod, next(self._numbers))
            if not pod.gated:
                self._activate(waiting)
            return
        waiting.pod = pod
        if waiting.place is QueuePlace.GATED and not pod.gated:
            self._activate(waiting)
        elif changed and waiting.place is QueuePlace.ASIDE:
            self._release(waiting, now)
        elif changed and waiting.place is QueuePlace.ACTIVE:
            self._activate(waiting)
        elif changed and waiting.place is QueuePlace.IN_HAND:
            waiting.taken_at = OUTDATED

    def drop(self, uid: str) -> None:
        """A pod waits no longer: it is bound, gone or somebody else's."""
        waiting = self._waiting.pop(uid, None)
        if waiting is not None:
            waiting.ticket = 0
            self._aside.pop(uid, None)

    def take(self, now: float) -> WaitingPod | None:
        """The next pod to schedule, in hand until it is dropped, retried or put aside."""
        self._wake(now)
        while self._active:
            _, _, ticket, waiting = heapq.heappop(self._active)
            if waiting.ticket == ticket and waiting.place is QueuePlace.ACTIVE:
                waiting.place = QueuePlace.IN_HAND
                waiting.attempts += 1
                waiting.taken_at = self._events
                return waiting
        return None

    def retry(self, waiting: WaitingPod, now: float) -> None:
        """Try a pod again when its back-off is over."""
        if self._holds(waiting):
            waiting.ready = now + self._backoff(waiting)
            self._back_off(waiting)

    def put_aside(self, waiting: WaitingPod, cause: FilterCause, now: float) -> None:
        """No node would do: wait for a change that touches the cause."""
        if not self._holds(waiting):
            return
        waiting.ready = now + self._backoff(waiting)
        waiting.cause = cause
        missed = any(at > waiting.taken_at for kind, at in self._last.items() if kind & cause)
        if missed or waiting.taken_at == OUTDATED:
            # Something happened while the pod was in hand; nobody knows whether it was taken into account.
            self._back_off(waiting)
            return
        waiting.place = QueuePlace.ASIDE
        self._aside[waiting.pod.uid] = waiting
        self._time(waiting, now + LONGEST_WAIT)

    def happened(self, cause: FilterCause, now: float) -> None:
        """Something has changed for the better as to this cause."""
        self._events += 1
        for kind in cause:
            self._last[kind] = self._events
        for waiting in [one for one in self._aside.values() if one.cause & cause]:
            self._release(waiting, now)

    def next_time(self) -> float | None:
        """When the next pod is to be tried again though nothing happens."""
        while self._timed and self._timed[0][3].ticket != self._timed[0][2]:
            heapq.heappop(self._timed)
        return self._timed[0][0] if self._timed else None

    def _holds(self, waiting: WaitingPod) -> bool:
        return self._waiting.get(waiting.pod.uid) is waiting

    def _backoff(self, waiting: WaitingPod) -> float:
        doublings = min(max(waiting.attempts - 1, 0), 30)
        return min(self._longest, self._first * 2.0**doublings)

    def _activate(self, waiting: WaitingPod) -> None:
        self._aside.pop(waiting.pod.uid, None)
        waiting.place = QueuePlace.ACTIVE
        waiting.ticket = next(self._tickets)
        heapq.heappush(self._active, (-waiting.pod.priority, waiting.number, waiting.ticket, waiting))

    def _release(self, waiting: WaitingPod, now: float) -> None:
        if waiting.ready <= now:
            self._activate(waiting)
        else:
            self._aside.pop(waiting.pod.uid, None)
            self._back_off(waiting)

    def _back_off(self, waiting: WaitingPod) -> None:
        waiting.place = QueuePlace.BACKING_OFF
        self._time(waiting, waiting.ready)

    def _time(self, waiting: WaitingPod, when: float) -> None:
        waiting.ticket = next(self._tickets)
        heapq.heappush(self._timed, (when, waiting.number, waiting.ticket, waiting))

    def _wake(self, now: float) -> None:
        while (when := self.next_time()) is not None and when <= now:
            self._activate(heapq.heappop(self._timed)[3])
