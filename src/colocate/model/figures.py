"""Figures as people read them, for the sentences that explain decisions."""

from collections.abc import Sequence

from colocate.model.memory import Bytes

_UNITS = (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10))


def amount(value: Bytes) -> str:
    """An amount such as `1.5 GiB`, rounded to two places at most."""
    for unit, power in _UNITS:
        if abs(value) >= 1 << power:
            return f"{value / (1 << power):.2f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{value} B"


def count(number: int, noun: str) -> str:
    """Such as `1 block` and `3 blocks`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def some(names: Sequence[str], most: int = 4) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
