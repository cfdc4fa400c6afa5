"""Quantities of resource lists: parsed exactly, written in the API server's canonical form. Pure."""

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

from colocate.model import quantity

_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}


def parse(value: Any) -> Fraction:
    """The exact number; ValueError where the text is not a quantity."""
    return _parse("" if isinstance(value, bool) else str(value))


@lru_cache(maxsize=4096)
def _parse(text: str) -> Fraction:
    try:
        return quantity.parse(text)
    except ValueError:
        raise ValueError(
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        ) from None


def canonical(value: Any) -> str:
    """The form that an API server returns: 0.5 is 500m, 1.5Gi is 1536Mi, the number 4 is "4"."""
    amount = parse(value)
    return in_binary(amount) if str(value).endswith("i") else in_decimal(amount)


def in_decimal(amount: Fraction) -> str:
    """The amount with a decimal unit, as for CPU."""
    for suffix, power in sorted(_DECIMAL.items(), key=lambda unit: -unit[1]):
        scaled = amount / Fraction(10) ** power
        if scaled.denominator == 1:
            return f"{scaled.numerator}{suffix}" if amount else "0"
    # The smallest unit is a billionth: the rest is rounded up, as for requests.
    return f"{math.ceil(amount * 10**9)}n"


def in_binary(amount: Fraction) -> str:
    """The amount with a binary unit, as for memory, if it is large enough for one."""
    if abs(amount) < 1024:
        return in_decimal(amount)
    whole = math.ceil(amount)
    for suffix, power in reversed(_BINARY.items()):
        if whole % 1024**power == 0:
            return f"{whole // 1024**power}{suffix}"
    return str(whole)


def is_extended(name: str) -> bool:
    """Whether a resource is an extended one, as device plugins offer: with a domain, in whole units."""
    domain, slash, _ = name.partition("/")
    if not slash or domain == "requests.":
        return False
    return not (domain == "kubernetes.io" or domain.endswith(".kubernetes.io"))
