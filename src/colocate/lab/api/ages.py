"""Formats ages as briefly as kubectl does. Pure."""

from colocate.lab.api.objects import parse_time

_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86_400, 365 * 86_400


def human(seconds: float) -> str:
    """A duration; the longer, the coarser: 75s, 7m31s, 68m, 5h10m, 30h, 3d4h, 12d, 3y20d."""
    if seconds <= -2:
        return "<invalid>"
    whole = max(0, int(seconds))
    if whole < 2 * _MINUTE:
        return f"{whole}s"
    if whole < 10 * _MINUTE:
        return _two(whole // _MINUTE, "m", whole % _MINUTE, "s")
    if whole < 3 * _HOUR:
        return f"{whole // _MINUTE}m"
    if whole < 8 * _HOUR:
        return _two(whole // _HOUR, "h", whole % _HOUR // _MINUTE, "m")
    if whole < 2 * _DAY:
        return f"{whole // _HOUR}h"
    if whole < 8 * _DAY:
        return _two(whole // _DAY, "d", whole % _DAY // _HOUR, "h")
    if whole < 2 * _YEAR:
        return f"{whole // _DAY}d"
    if whole < 8 * _YEAR:
        return _two(whole // _YEAR, "y", whole % _YEAR // _DAY, "d")
    return f"{whole // _YEAR}y"


def age(timestamp: object, now: float) -> str:
    """The age of a timestamp of an object."""
    moment = parse_time(timestamp)
    return "<unknown>" if moment is None else human(now - moment)


def _two(coarse: int, coarse_unit: str, fine: int, fine_unit: str) -> str:
    return f"{coarse}{coarse_unit}{fine}{fine_unit}" if fine else f"{coarse}{coarse_unit}"
