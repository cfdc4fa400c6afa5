"""Two things measured side by side: A B A B …, so that what disturbs the machine disturbs both.

What a sample is, seconds or bytes, is up to the two functions that take one; here they are only paired, until
the ratio of the medians holds still. A noisy machine makes that take longer, up to a bound.
"""

import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

Sample = Callable[[], Awaitable[float]]

STILL = 1.02
"""How far the ratio may have wandered over the last half of the rounds to count as still."""


class Measured(msgspec.Struct, frozen=True):
    """The medians of both sides."""

    ours: float
    theirs: float
    rounds: int
    still: bool
    """False where time ran out before the ratio held still."""

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs


async def side_by_side(
    ours: Sample,
    theirs: Sample,
    *,
    warm_up: int = 3,
    at_least: int = 20,
    seconds: float = 10.0,
    now: Callable[[], float] = time.monotonic,
) -> Measured:
    """Take samples of both in turn until the ratio of their medians holds still, or for so many seconds.

    `at_least` so many rounds are taken in any case. Garbage is collected before every sample and never in
    one: a collection that happens to fall into one side would be noise.
    """
    for _ in range(warm_up):
        await ours()
        await theirs()
    taken: tuple[list[float], list[float]] = ([], [])
    ratios: list[float] = []
    end = now() + seconds
    with _collected_between() as collect:
        while True:
            for sample, values in zip((ours, theirs), taken, strict=True):
                collect()
                values.append(await sample())
            medians = [statistics.median(values) for values in taken]
            ratios.append(medians[0] / medians[1])
            still = len(ratios) >= at_least and _holds_still(ratios)
            if still or (len(ratios) >= at_least and now() >= end):
                return Measured(medians[0], medians[1], len(ratios), still)


def _holds_still(ratios: Sequence[float]) -> bool:
    recent = ratios[len(ratios) // 2 :]
    return max(recent) <= STILL * min(recent)


@contextmanager
def _collected_between() -> Iterator[Callable[[], object]]:
    """No collection but those that are asked for; what was there before is not looked at again."""
    was_on = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield gc.collect
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()
