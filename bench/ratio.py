"""What a bench declares, a `Ratio` with its threshold, and what it returns, a `Row`. No I/O here."""

import msgspec


class Figure(msgspec.Struct, frozen=True):
    """An absolute number, for information: it says more of the machine than of the code."""

    name: str
    value: float | str
    unit: str = ""

    def __str__(self) -> str:
        value = self.value if isinstance(self.value, str) else f"{self.value:.3g}"
        if isinstance(self.value, float | int) and abs(self.value) >= 100:
            value = f"{self.value:.0f}"
        return f"{self.name} {value} {self.unit}".rstrip()


class Row(msgspec.Struct, frozen=True):
    """One measured ratio."""

    name: str
    against: str
    ratio: float
    threshold: float | None
    figures: list[Figure] = []

    @property
    def within(self) -> bool:
        # Said this way round, a ratio that is not a number is beyond any threshold.
        return self.threshold is None or self.ratio <= self.threshold


class Ratio(msgspec.Struct, frozen=True):
    """What a bench compares, and how great the ratio may be."""

    name: str
    against: str
    threshold: float | None
    """None where it is measured to be known, and nothing is demanded of it."""

    @property
    def demanded(self) -> str:
        return "no bar" if self.threshold is None else f"at most {self.threshold:g}"

    def row(self, ratio: float, *figures: Figure) -> Row:
        return Row(self.name, self.against, ratio, self.threshold, list(figures))
