"""What the pods of an owner really use, against what was estimated for them; the next ones are judged by it.

Learned from pods whose own usage is reported. Bounded both ways: one odd pod cannot make the next look like
nothing, nor like the whole node.
"""

from collections import OrderedDict

import msgspec

from colocate.load.arithmetic import clamp
from colocate.load.demand import AS_ESTIMATED, Ratio
from colocate.model.load import Amount

LEAST, MOST = 0.1, 2.0
_WEIGHT_OF_NEW = 0.2
_OWNERS = 10_000


class Learned(msgspec.Struct, frozen=True):
    """One owner's ratio, as it is kept in a snapshot."""

    owner: str
    ratio: Ratio


class Calibration:
    """Ratios of actual to estimated use per owner; the owners heard of longest ago are forgotten first."""

    def __init__(self, learned: tuple[Learned, ...] = (), *, owners: int = _OWNERS) -> None:
        self._ratios: OrderedDict[str, Ratio] = OrderedDict((each.owner, each.ratio) for each in learned)
        self._owners = owners

    def ratio(self, owner: str) -> Ratio:
        return self._ratios.get(owner, AS_ESTIMATED)

    def learn(self, owner: str, estimate: Amount, actual: Amount) -> None:
        """`estimate` is the one without correction."""
        if not owner:
            return
        old = self.ratio(owner)
        self._ratios[owner] = Ratio(
            _blend(old.cpu, estimate.cpu, actual.cpu), _blend(old.memory, estimate.memory, actual.memory)
        )
        self._ratios.move_to_end(owner)
        if len(self._ratios) > self._owners:
            self._ratios.popitem(last=False)

    @property
    def learned(self) -> tuple[Learned, ...]:
        return tuple(Learned(owner, ratio) for owner, ratio in self._ratios.items())


def _blend(old: float, estimate: int, actual: int) -> float:
    if estimate <= 0:
        return old
    seen = clamp(actual / estimate, LEAST, MOST)
    return old + _WEIGHT_OF_NEW * (seen - old)
