"""Spans of time on the command line: 90, 500ms, 15m."""

from colocate.apps.config.values import to_seconds
from colocate.errors import UserError


def seconds(text: str, flag: str) -> float:
    """The seconds that a flag says; a UserError names it where it says none."""
    try:
        return float(to_seconds(text))
    except ValueError as error:
        raise UserError(f"{flag}: {text!r} is not {error}") from error


def positive_seconds(text: str, flag: str) -> float:
    """The same, where no time at all makes no sense."""
    found = seconds(text, flag)
    if found <= 0:
        raise UserError(f"{flag}: {text!r} is not more than 0; write it like 90s or 15m")
    return found
