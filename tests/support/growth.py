"""How the cost of some work grows with its size: in CPU time, to which a busy machine can only add."""

import gc
import time
from collections.abc import Callable

TRIES = 12


def cpu_seconds(work: Callable[[], object]) -> float:
    """The CPU time of some work, without collections of the garbage that earlier tests have left."""
    collected = gc.isenabled()
    gc.disable()
    try:
        begun = time.process_time()
        work()
        return time.process_time() - begun
    finally:
        if collected:
            gc.enable()


def check_growth(
    prepare: Callable[[int], Callable[[], object]], small: int, large: int, at_most: float
) -> None:
    """Fails if the large work costs more than `at_most` times the small one, at the best of some tries each."""
    least = {small: float("inf"), large: float("inf")}
    for _ in range(TRIES):
        for size in least:
            least[size] = min(least[size], cpu_seconds(prepare(size)))
        if least[large] <= at_most * least[small]:
            return
    raise AssertionError(
        f"{large} costs {least[large] / least[small]:.1f} times as much as {small}, {at_most} are allowed"
    )
