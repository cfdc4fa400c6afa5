"""What a check says: data that is printed, written as JSON, or asserted in a test."""

import enum

import msgspec


class Verdict(enum.IntEnum):
    """How bad it is; the worst of all is the exit code."""

    GOOD = 0
    WARN = 1
    """Works, but somebody should look; or could not be looked at from here."""
    BAD = 2
    """Does not work."""

    @property
    def sign(self) -> str:
        return "✓!✗"[self]


class Result(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    verdict: Verdict
    reason: str
    """What was found, in a sentence."""
    remedy: str = ""
    """What to do about it; never empty unless the verdict is GOOD."""


class Examined(msgspec.Struct, frozen=True):
    """All that one check found."""

    section: str
    check: str
    results: tuple[Result, ...]

    @property
    def worst(self) -> Verdict:
        return max((result.verdict for result in self.results), default=Verdict.GOOD)


def good(reason: str) -> Result:
    return Result(Verdict.GOOD, reason)


def warn(reason: str, remedy: str) -> Result:
    return Result(Verdict.WARN, reason, remedy)


def bad(reason: str, remedy: str) -> Result:
    return Result(Verdict.BAD, reason, remedy)
