"""The ladder's state: its rung, what was done to which pod, and what it takes to undo it.

It is stored before a plan is carried out, so that an agent that was killed in between finds all that may have been
done. Times are of the state's own clock. If the state is lost, throttled pods are found again by their mark, if they
hold blocks: a pod without blocks is left alone, marked or not.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from colocate.memory.settings import Rung
from colocate.model.memory import Bytes, PodIdentity, PodMemory, PodUid


class Throttled(msgspec.Struct, frozen=True):
    """A pod whose memory.high is ours."""

    before: Bytes | None
    to: Bytes


class Moved(msgspec.Struct, frozen=True):
    """A pod whose pages the ladder moved to far nodes."""

    before: Bytes
    """Bytes that were on far nodes before."""
    sources: tuple[int, ...]
    targets: tuple[int, ...]


class LeavingPod(msgspec.Struct, frozen=True):
    """A pod that is evicted, or chosen to be."""

    by: Rung
    since: float
    accepted: bool = False
    """Whether the API has accepted the eviction."""
    again_at: float = 0.0
    """When the eviction is requested again."""
    waits_for: str = ""
    """Why the pod is not evicted yet."""
    refusals: int = 0
    """How often in a row the API has refused the eviction."""


class GaveUp(msgspec.Struct, frozen=True):
    """A pod that a rung no longer tries, because it failed there; until the ladder is at rest."""

    rung: Rung
    uid: PodUid
    why: str


class Ladder(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the ladder; by default it is not in use."""

    rung: Rung | None = None
    since: float = 0.0
    """When the deadline of this rung started."""
    calm_since: float | None = None
    """Since when there is free memory to give back."""
    undid_at: float | None = None
    """When an action was last undone."""
    throttled: Mapping[PodUid, Throttled] = {}
    moved: Mapping[PodUid, Moved] = {}
    leaving: Mapping[PodUid, LeavingPod] = {}
    gave_up: tuple[GaveUp, ...] = ()
    demotion_is_ours: bool = False
    """Whether the agent has switched the kernel's demotion on for the far rung, or was about to."""

    @property
    def has_done_something(self) -> bool:
        """Whether anything is left to undo."""
        return bool(self.throttled or self.moved)

    @property
    def highest_left(self) -> Rung | None:
        """The highest rung of which anything is left to undo."""
        if self.moved:
            return Rung.FAR
        return Rung.THROTTLE if self.throttled else None

    def has_done_something_to(self, uid: PodUid) -> bool:
        return uid in self.throttled or uid in self.moved

    def has_given_up(self, rung: Rung, uid: PodUid) -> bool:
        return any(each.rung is rung and each.uid == uid for each in self.gave_up)


_T = TypeVar("_T")


def put(done: Mapping[PodUid, _T], uid: PodUid, what: _T) -> dict[PodUid, _T]:
    return {**done, uid: what}


def drop(done: Mapping[PodUid, _T], uid: PodUid) -> dict[PodUid, _T]:
    return {each: what for each, what in done.items() if each != uid}


def throttled_again(
    ladder: Ladder, readings: Sequence[PodMemory], holders: Mapping[PodUid, PodIdentity]
) -> Ladder:
    """The ladder with every holder whose memory.high is marked as ours."""
    found = {
        each.uid: Throttled(each.our_high.before, each.high)
        for each in readings
        if each.our_high is not None
        and each.high is not None
        and each.uid not in ladder.throttled
        and each.uid in holders
        and holders[each.uid].may_hold_blocks
    }
    return msgspec.structs.replace(ladder, throttled={**ladder.throttled, **found}) if found else ladder


def stand(ladder: Ladder, rung: Rung, now: float) -> Ladder:
    """The ladder on a rung whose deadline starts now."""
    return msgspec.structs.replace(ladder, rung=rung, since=now)
