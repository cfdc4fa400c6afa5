"""Where the ladder stands, and what was done to whom, with what it takes to undo it.

It is stored before anything in a plan is carried out: whoever is killed in between finds here all that may have been
done. Times are of the state's own clock. What a lost state has forgotten is found again by the marks on pods that
hold blocks: whoever holds none is left alone, marked or not.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from colocate.memory.settings import Rung
from colocate.model.memory import Bytes, PodIdentity, PodMemory, PodUid


class Throttled(msgspec.Struct, frozen=True):
    """A pod with a memory.high of ours."""

    before: Bytes | None
    to: Bytes


class Moved(msgspec.Struct, frozen=True):
    """A pod with pages on far nodes because of us."""

    before: Bytes
    """What it had there already."""
    sources: tuple[int, ...]
    targets: tuple[int, ...]


class LeavingPod(msgspec.Struct, frozen=True):
    """A pod that was told, or is to be told, to go."""

    by: Rung
    since: float
    accepted: bool = False
    """The API has taken it."""
    again_at: float = 0.0
    """When it is asked for again."""
    waits_for: str = ""
    """Why it has not been done yet."""
    refusals: int = 0
    """How often in a row the API has refused it."""


class GaveUp(msgspec.Struct, frozen=True):
    """A pod that a rung does not work on, until the ladder is left."""

    rung: Rung
    uid: PodUid
    why: str


class Ladder(msgspec.Struct, frozen=True, kw_only=True):
    """The standing of it all; on the ground with nothing done by default."""

    rung: Rung | None = None
    since: float = 0.0
    """Since when this rung is expected to pay."""
    calm_since: float | None = None
    """Since when there is memory to give back."""
    undid_at: float | None = None
    """When something was last undone."""
    throttled: Mapping[PodUid, Throttled] = {}
    moved: Mapping[PodUid, Moved] = {}
    leaving: Mapping[PodUid, LeavingPod] = {}
    gave_up: tuple[GaveUp, ...] = ()
    demotion_is_ours: bool = False
    """The kernel's demotion was off, and is or was to be switched on for the far rung."""

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
    """The ladder with every holder whose memory.high is ours."""
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
    """The ladder on a rung, which is expected to pay from now on."""
    return msgspec.structs.replace(ladder, rung=rung, since=now)
