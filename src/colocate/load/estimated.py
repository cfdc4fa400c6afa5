"""How much of what a node measurably has free is taken by what is only estimated: pods that no sample shows yet.

An estimate may be many times what a pod will use: a limit says little. So estimates count in full for the first
half of what is free, then less and less, and never for more than three quarters: a node that is measured nearly
full stays behind one that is measured idle, however much is guessed of the idle one.
"""


def taken(free: float, estimated: float) -> float:
    """All in percent. Rises with `estimated`; what it leaves rises with `free`, by a quarter of it at least."""
    if free <= 0:
        return 0.0
    if estimated <= free / 2:
        return estimated
    return free * 0.75 - free * free / (8 * estimated)
