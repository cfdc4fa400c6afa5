"""What is known of an owner's pods: how much they use of what was estimated, now, and how far that swings.

Pods of one owner behave alike, so every one that is measured tells what the next will use. What is learned does not
go away with a pod, and nothing is learned of a pod that has hardly begun. It is bounded both ways: one odd pod cannot
make the next look like nothing, nor like the whole node. Of an owner that nobody knows, the pods are taken to use as
much of their estimates as all pods together do.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from colocate.model.go import clamp


class Ratio(msgspec.Struct, frozen=True):
    """By how much pods use more or less than was estimated."""

    cpu: float = 1.0
    memory: float = 1.0


AS_ESTIMATED = Ratio()
NO_SWING = Ratio(0.0, 0.0)

LEAST, MOST = 0.02, 5.0
_OWNERS = 10_000
_MEAN_TIME, _SWING_TIME = 7200.0, 14_400.0
"""Seconds after which what was learned has lost two thirds of its weight: of the mean, and of the swing around it."""
_FIRST_SWING = 0.5
"""Of its use, as long as an owner's pods were hardly seen."""
_LONGEST_STEP = 600.0
"""Seconds that one measurement stands for at most: an owner may have had no pods for days."""
_TRUST = 4.0
"""Minutes of a measured pod that weigh as much as what is known without it."""
_KNOWN_PODS, _KNOWN_OWNERS = 20, 3
"""Measured, so that all of them together tell of those that nobody knows."""
_GRID = math.log(1.05)


class Learned(msgspec.Struct, frozen=True):
    """One owner, as it is kept in a snapshot."""

    owner: str
    ratio: Ratio
    """Now, by all pods that are measured."""
    mean: Ratio = AS_ESTIMATED
    """Over the last hours."""
    variance: Ratio = NO_SWING
    """Around that."""
    evidence: float = 1.0
    """Minutes for which pods were measured, all together."""
    time: float = 0.0
    since: float = 0.0


class OwnerUse(msgspec.Struct, gc=False):
    """What an owner's pods add up to in one round of measurements."""

    pods: int = 0
    estimate_cpu: int = 0
    estimate_memory: int = 0
    cpu: int = 0
    memory: int = 0

    @property
    def ratio(self) -> Ratio:
        return Ratio(_share(self.cpu, self.estimate_cpu), _share(self.memory, self.estimate_memory))


class Calibration:
    """Per owner; those heard of longest ago are forgotten first."""

    def __init__(
        self, learned: Iterable[Learned] = (), overall: Ratio = AS_ESTIMATED, *, owners: int = _OWNERS
    ) -> None:
        self._known: OrderedDict[str, Learned] = OrderedDict((each.owner, each) for each in learned)
        self._swings = {owner: _swing(each) for owner, each in self._known.items()}
        """Of each that is known: it is asked for every pod of every node."""
        self._owners = owners
        self.overall = overall
        """Of the pods of owners that nobody knows."""

    def ratio(self, owner: str) -> Ratio:
        known = self._known.get(owner)
        if known is None:
            return self.overall
        trust = known.evidence / (known.evidence + _TRUST)
        return Ratio(
            _coarse(self.overall.cpu + trust * (known.ratio.cpu - self.overall.cpu)),
            _coarse(self.overall.memory + trust * (known.ratio.memory - self.overall.memory)),
        )

    def swing(self, owner: str) -> Ratio:
        """The standard deviation, as a share of what a pod states; nothing of an owner that nobody knows."""
        return self._swings.get(owner, NO_SWING)

    def learn(self, owner: str, use: OwnerUse, now: float) -> None:
        """One round of an owner's pods."""
        if not owner or not use.pods:
            return
        old = self._known.get(owner)
        if old is not None and now <= old.time:
            # These measurements are known.
            self._known.move_to_end(owner)
            return
        seen = use.ratio
        if old is None:
            first = Ratio((_FIRST_SWING * seen.cpu) ** 2, (_FIRST_SWING * seen.memory) ** 2)
            made = Learned(owner, seen, seen, first, float(use.pods), now, now)
        else:
            step = clamp(now - old.time, 0.0, _LONGEST_STEP)
            share = max(_weight(step, _MEAN_TIME), min(1.0, step / max(now - old.since, step, 1.0)))
            off = Ratio(seen.cpu - old.mean.cpu, seen.memory - old.mean.memory)
            swung = _weight(step, _SWING_TIME)
            made = Learned(
                owner,
                seen,
                Ratio(old.mean.cpu + share * off.cpu, old.mean.memory + share * off.memory),
                Ratio(
                    old.variance.cpu + swung * (off.cpu**2 - old.variance.cpu),
                    old.variance.memory + swung * (off.memory**2 - old.variance.memory),
                ),
                old.evidence + use.pods * step / 60,
                now,
                old.since,
            )
        self._known[owner] = made
        self._known.move_to_end(owner)
        self._swings[owner] = _swing(made)
        if len(self._known) > self._owners:
            forgotten, _ = self._known.popitem(last=False)
            del self._swings[forgotten]

    def learn_overall(self, uses: Iterable[OwnerUse]) -> None:
        """What all pods together say of those that nobody knows; too few say nothing."""
        total, owners = OwnerUse(), 0
        for use in uses:
            owners += 1
            total.pods += use.pods
            total.estimate_cpu += use.estimate_cpu
            total.estimate_memory += use.estimate_memory
            total.cpu += use.cpu
            total.memory += use.memory
        if total.pods >= _KNOWN_PODS and owners >= _KNOWN_OWNERS:
            self.overall = Ratio(_coarse(total.ratio.cpu), _coarse(total.ratio.memory))

    @property
    def learned(self) -> tuple[Learned, ...]:
        return tuple(self._known.values())


def _swing(known: Learned) -> Ratio:
    return Ratio(_coarse(math.sqrt(known.variance.cpu)), _coarse(math.sqrt(known.variance.memory)))


def _share(actual: int, estimate: int) -> float:
    return clamp(actual / estimate, LEAST, MOST) if estimate > 0 else 1.0


def _weight(step: float, of: float) -> float:
    return 1 - math.exp(-step / of)


def _coarse(value: float) -> float:
    """In steps of a twentieth: demands that hardly differ are one, and what was worked out for it goes on to hold."""
    return math.exp(round(math.log(value) / _GRID) * _GRID) if value > 0 else 0.0
