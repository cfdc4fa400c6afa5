"""Durations and rounding as in Go: `5s`, `1m30s`, half away from zero.

With them, policies written in Go give exactly the same scores here.
"""

import re

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")


def seconds(text: str) -> float:
    """The seconds of a Go duration; ValueError where Go would refuse it."""
    sign, parts = (text[:1], text[1:]) if text[:1] in ("+", "-") else ("", text)
    total, end = 0.0, 0
    if parts == "0":
        return 0.0
    while match := _PART.match(parts, end):
        total += float(match[1]) * _UNITS[match[2]]
        end = match.end()
    if not end or end != len(parts):
        raise ValueError(f"{text!r} is not a span of time; write it like 1s, 500ms or 1m30s")
    return -total if sign == "-" else total


def go_round(value: float) -> int:
    """Round half away from zero, as Go's math.Round does; Python's round() rounds half to even."""
    size = abs(value)
    whole = int(size)
    rounded = whole + 1 if size - whole >= 0.5 else whole
    return rounded if value >= 0 else -rounded


def clamp(value: float, low: float, high: float) -> float:
    return max(min(value, high), low)
