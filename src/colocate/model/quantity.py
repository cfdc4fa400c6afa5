"""Kubernetes quantities: `512Mi`, `1500m`, `2`, `1e3`, exactly; and lists of them, as API objects state them."""

import math
import re
from fractions import Fraction
from functools import lru_cache

from colocate.model.load import PerResource

_PATTERN = re.compile(
    r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:([eE][+-]?\d{1,3})|([KMGTPE]i|[numkMGTPE]))?", re.ASCII
)
_LONGEST = 64
"""Characters. Kubernetes writes fewer than half as many; a longer text is refused, and not cached."""
_SUFFIXES = {
    **{suffix: Fraction(1, 1000**power) for power, suffix in enumerate("mun", start=1)},
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", start=1)},
}


def parse(text: str | int | float) -> Fraction:
    """The value of a quantity; ValueError for any other text."""
    if isinstance(text, str) and len(text) > _LONGEST:
        raise ValueError(f"a text of {len(text)} characters is not a quantity such as 2, 1500m or 512Mi")
    match = _PATTERN.fullmatch(str(text))
    if not match:
        raise ValueError(f"{text!r} is not a quantity such as 2, 1500m or 512Mi")
    number, exponent, suffix = match.groups()
    value = Fraction(number)
    if exponent:
        return value * Fraction(10) ** int(exponent[1:])
    return value * _SUFFIXES[suffix] if suffix else value


def whole(text: str | int | float) -> int:
    """The value rounded up to an integer, as the kubelet reads counts and bytes."""
    value = parse(text)
    return -(-value.numerator // value.denominator)


def milli(text: str | int | float) -> int:
    """The value in thousandths, rounded up, as Kubernetes reads CPU."""
    value = parse(text) * 1000
    return -(-value.numerator // value.denominator)


Quantities = dict[str, str | int | float]

MOST = 2**63 - 1
"""The largest quantity in Kubernetes; larger ones are cut to it."""


def stated(quantities: Quantities, prefix: str = "") -> PerResource:
    """The quantities of the resources whose names begin with `prefix`; an invalid quantity counts as not stated."""
    cpu, memory = quantities.get(f"{prefix}cpu"), quantities.get(f"{prefix}memory")
    # Batch and mid CPU are counted in millicores; plain CPU is in cores.
    scale = 1 if prefix else 1000
    return PerResource(
        None if cpu is None else _value(cpu, scale), None if memory is None else _value(memory, 1)
    )


def _value(text: str | int | float, scale: int) -> int | None:
    if isinstance(text, str):
        return _known_value(text, scale) if len(text) <= _LONGEST else None
    return _known_value(min(MOST, max(0, text)), scale)


@lru_cache(maxsize=10_000)
def _known_value(text: str | int | float, scale: int) -> int | None:
    # Cached: hundreds of thousands of pods have few different texts.
    try:
        return min(MOST, max(0, math.ceil(parse(text) * scale)))
    except ValueError:
        return None
