"""Ranges of settings, each stated beside its field: `after: Annotated[float, Range(0, 100)]`. Pure.

msgspec reads numbers of any size into such a field; `out_of_range` finds the first that does not fit, and says so in
a sentence. So a settings file, an override and a snapshot are refused in the same words.
"""

import math

import msgspec


class Range(msgspec.Struct, frozen=True):
    """The numbers that a setting may have."""

    least: float = -math.inf
    most: float = math.inf
    more_than_least: bool = False
    """Whether `least` itself is refused."""
    refusal: str = "{:g} is out of range; choose {least:.15g} to {most:.15g}"
    """What is said of any other number, with the number in the place of the braces."""

    def holds(self, value: float) -> bool:
        return self.least <= value <= self.most and not (self.more_than_least and value == self.least)

    def refuse(self, value: float) -> str:
        return self.refusal.format(value, least=self.least, most=self.most)


def out_of_range(settings: msgspec.Struct, path: str, within: Range | None = None) -> tuple[str, str] | None:
    """The path of the first number that is out of its range, as a file names it, and why; None where all fit.

    The range of a field that holds a struct is that of all its numbers which state none.
    """
    for field in msgspec.structs.fields(settings):
        value, here = getattr(settings, field.name), f"{path}.{field.encode_name}"
        notes = getattr(field.type, "__metadata__", ())
        allowed = next((note for note in notes if isinstance(note, Range)), within)
        if isinstance(value, msgspec.Struct):
            if found := out_of_range(value, here, allowed):
                return found
        elif allowed is not None and isinstance(value, int | float) and not allowed.holds(value):
            return here, allowed.refuse(value)
    return None
