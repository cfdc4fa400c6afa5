"""Whether values that should be percents look like ratios, from 0 to 1: by a rule that lacks its `100 *`. Pure.

Memory decides. What a machine runs before its first pod takes more than one percent of its memory, so no cluster of
several nodes is below that on all of them. Nothing but idle machines of terabytes may be: they are told once what
they need not heed, which is better than to take every node for idle and say nothing.

CPU cannot decide. Nodes without work are below one percent for hours, large ones with some work, too: no values of
CPU are those of a ratio beyond doubt. So they are taken for one where memory is: who records one without its `100 *`
records both so. A ratio of CPU beside percents of memory is left to whoever looks at the values.

Deviations are small by nature, and say nothing. Nor is there anything to ask where the `100 *` is in a query of ours.
"""

from collections.abc import Collection, Mapping

from colocate.cluster.usage.signals import MEMORY, Measured, Signal, Statistic

_SEVERAL = 2
"""A single node proves nothing, and there is nothing to choose."""


def ratios(percents: Mapping[Signal, Collection[float]]) -> dict[Signal, bool]:
    """Whether the values of each signal of nodes look like ratios.

    Nothing is said of CPU where memory has not been asked for, or has no answer.
    """
    low = {
        signal: below_one(values)
        for signal, values in percents.items()
        if signal.statistic is not Statistic.DEVIATION
    }
    return {
        signal: so and (signal.measured is Measured.MEMORY or low[MEMORY])
        for signal, so in low.items()
        if signal.measured is Measured.MEMORY or MEMORY in low
    }


def below_one(percents: Collection[float]) -> bool:
    """Whether several nodes are used, and none by more than one percent."""
    return len(percents) >= _SEVERAL and 0 < max(percents) <= 1
