"""How long to wait before the next attempt: doubled each time, spread by chance, begun anew after success."""

from collections.abc import Callable

Random = Callable[[], float]
"""A number from 0 up to, not including, 1."""


class BackOff:
    """Pauses from `first` seconds up to `last`, each up to twice as long by chance.

    The spread is what keeps five thousand agents from coming back in the same second.
    """

    def __init__(self, first: float, last: float, random: Random) -> None:
        self._first = first
        self._last = last
        self._random = random
        self._next = first

    def pause(self, at_least: float | None = None) -> float:
        """Seconds before the next attempt; longer where the server asks for longer."""
        pause = self._next * (1 + self._random())
        self._next = min(self._next * 2, self._last)
        return max(pause, at_least or 0.0)

    def reset(self) -> None:
        """Begin anew: it works again."""
        self._next = self._first
