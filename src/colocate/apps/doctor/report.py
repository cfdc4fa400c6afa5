"""What a check says: data that is printed, written as JSON, or asserted in a test."""

import enum

import msgspec


class CheckVerdict(enum.IntEnum):
    """How bad it is; the worst of all is the exit code."""

    GOOD = 0
    WARN = 1
    """Works, but somebody should look; or could not be looked at from here."""
    BAD = 2
    """Does not work."""

    @property
    def sign(self) -> str:
        return "✓!✗"[self]


class CheckResult(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    verdict: CheckVerdict
    reason: str
    """What was found, in a sentence."""
    remedy: str = ""
    """What to do about it; never empty unless the verdict is GOOD."""


class Examined(msgspec.Struct, frozen=True):
    """All that one check found."""

    section: str
    check: str
    results: tuple[CheckResult, ...]

    @property
    def worst(self) -> CheckVerdict:
        return max((result.verdict for result in self.results), default=CheckVerdict.GOOD)


def good(reason: str) -> CheckResult:
    return CheckResult(CheckVerdict.GOOD, reason)


def warn(reason: str, remedy: str) -> CheckResult:
    return CheckResult(CheckVerdict.WARN, reason, remedy)


def bad(reason: str, remedy: str) -> CheckResult:
    return CheckResult(CheckVerdict.BAD, reason, remedy)
