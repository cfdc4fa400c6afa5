"""The result of a check: data that is printed, written as JSON, or asserted in a test."""

import enum

import msgspec


class CheckVerdict(enum.IntEnum):
    """How bad a result is; the exit code is the worst of all, and at least GOOD."""

    ABSENT = -1
    """Not available here, which is no fault."""
    GOOD = 0
    WARN = 1
    """Works, but have a look; or it could not be checked from here."""
    BAD = 2
    """Does not work."""

    @property
    def sign(self) -> str:
        return {
            CheckVerdict.ABSENT: "–",
            CheckVerdict.GOOD: "✓",
            CheckVerdict.WARN: "!",
            CheckVerdict.BAD: "✗",
        }[self]


class CheckResult(msgspec.Struct, frozen=True):
    """One result of a check."""

    verdict: CheckVerdict
    reason: str
    """What was found, in a sentence."""
    remedy: str = ""
    """What to do about it; never empty for WARN and BAD."""
    needs_root: bool = False
    """Only root can check this; reported once for all checks."""


class Examined(msgspec.Struct, frozen=True):
    """All results of one check."""

    section: str
    check: str
    results: tuple[CheckResult, ...]

    @property
    def worst(self) -> CheckVerdict:
        return max((CheckVerdict.GOOD, *(result.verdict for result in self.results)))


def good(reason: str) -> CheckResult:
    return CheckResult(CheckVerdict.GOOD, reason)


def absent(reason: str) -> CheckResult:
    return CheckResult(CheckVerdict.ABSENT, reason)


def no_right(what: str = "") -> CheckResult:
    """A check that only root can make."""
    return CheckResult(CheckVerdict.WARN, what or "this needs root", "run this as root", needs_root=True)


def warn(reason: str, remedy: str) -> CheckResult:
    return CheckResult(CheckVerdict.WARN, reason, remedy)


def bad(reason: str, remedy: str) -> CheckResult:
    return CheckResult(CheckVerdict.BAD, reason, remedy)
