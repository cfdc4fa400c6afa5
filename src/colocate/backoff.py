"""How long to wait before the next attempt: doubled each time, with random jitter, reset after success."""

from collections.abc import Callable

Random = Callable[[], float]
"""Returns a number from 0 (included) to 1 (excluded)."""


class BackOff:
    """Pauses from `first` seconds up to `last`, each multiplied by a random factor from 1 to 2.

    The jitter keeps five thousand agents from reconnecting in the same second.
    """

    def __init__(self, first: float, last: float, random: Random) -> None:
        self._first = first
        self._last = last
        self._random = random
        self._next = first

    def pause(self, at_least: float | None = None) -> float:
        """Seconds before the next attempt; at least `at_least`, which a server may ask for."""
        pause = self._next * (1 + self._random())
        self._next = min(self._next * 2, self._last)
        return max(pause, at_least or 0.0)

    def reset(self) -> None:
        """Start again with the first pause, after a success."""
        self._next = self._first
