"""The queue of pods without a node: which is next, and when the others are retried. Has no clock.

A pod that fits nowhere is set aside until a change of the cluster may help, and then still waits for its back-off.
A pod whose attempt failed for another reason waits only for its back-off.
"""

import heapq
import itertools
from enum import Enum, auto

from colocate.lab.scheduler.facts import SchedulablePod
from colocate.lab.scheduler.filters import FilterCause

FIRST_BACKOFF = 1.0
LONGEST_BACKOFF = 10.0
LONGEST_WAIT = 300.0
"""Seconds after which a pod that was set aside is retried in any case."""

NOW = float("-inf")
OUTDATED = -1


class QueuePlace(Enum):
    """The state of a waiting pod."""

    ACTIVE = auto()
    IN_HAND = auto()
    BACKING_OFF = auto()
    ASIDE = auto()
    GATED = auto()


class WaitingPod:
    """One waiting pod."""

    __slots__ = ("attempts", "cause", "number", "place", "pod", "ready", "taken_at", "ticket")

    def __init__(self, pod: SchedulablePod, number: int) -> None:
        self.pod = pod
        self.number = number
        """The pod's number in the order of arrival."""
        self.attempts = 0
        self.place = QueuePlace.GATED
        self.cause = FilterCause(0)
        self.ready = NOW
        """When its back-off ends."""
        self.taken_at = 0
        self.ticket = 0
        """The number of its newest entry in a heap; older entries are ignored."""


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
        """Add a pod, or update its version; `changed` where its requirements may have changed."""
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
        """Remove a pod that is bound, deleted or no longer ours."""
        waiting = self._waiting.pop(uid, None)
        if waiting is not None:
            waiting.ticket = 0
            self._aside.pop(uid, None)

    def take(self, now: float) -> WaitingPod | None:
        """The next pod to schedule; it stays in the state IN_HAND until it is dropped, retried or set aside."""
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
        """Retry a pod after its back-off."""
        if self._holds(waiting):
            waiting.ready = now + self._backoff(waiting)
            self._back_off(waiting)

    def put_aside(self, waiting: WaitingPod, cause: FilterCause, now: float) -> None:
        """Set a pod aside that fits on no node, until a change clears the cause."""
        if not self._holds(waiting):
            return
        waiting.ready = now + self._backoff(waiting)
        waiting.cause = cause
        missed = any(at > waiting.taken_at for kind, at in self._last.items() if kind & cause)
        if missed or waiting.taken_at == OUTDATED:
            # Something changed during the attempt, which may not have seen it.
            self._back_off(waiting)
            return
        waiting.place = QueuePlace.ASIDE
        self._aside[waiting.pod.uid] = waiting
        self._time(waiting, now + LONGEST_WAIT)

    def happened(self, cause: FilterCause, now: float) -> None:
        """Release the pods that a change of this cause may help."""
        self._events += 1
        for kind in cause:
            self._last[kind] = self._events
        for waiting in [one for one in self._aside.values() if one.cause & cause]:
            self._release(waiting, now)

    def next_time(self) -> float | None:
        """When the next pod is retried without a change."""
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
