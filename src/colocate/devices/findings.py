"""A finding of a check: a code for programs, a sentence and a remedy for people."""

from collections.abc import Collection, Iterable
from enum import StrEnum

import msgspec

_SHOWN = 4


class Severity(StrEnum):
    """How serious a finding is."""

    INFO = "info"
    """Worth knowing; nothing is wrong."""
    WARNING = "warning"
    """Two records disagree, or something will go wrong later."""
    ERROR = "error"
    """Something is wrong now."""


class Code(StrEnum):
    """Every kind of finding. Scripts compare the values, so they do not change."""

    CHECKSUM = "checksum"
    OLD_FORMAT = "old-format"
    INCOMPLETE_ENTRY = "incomplete-entry"
    REPEATED_ENTRY = "repeated-entry"
    REPEATED_ID = "repeated-id"
    NUMA_NODE = "numa-node"
    RESOURCE_NAME = "resource-name"
    INJECTION_UNREADABLE = "injection-unreadable"
    INJECTED_OTHER = "injected-other"
    HELD_TWICE = "held-twice"
    NOT_REGISTERED = "not-registered"

    STALE_POD = "stale-pod"
    DRIFT = "drift"
    MISSING_ENTRY = "missing-entry"
    PLUGIN_GONE = "plugin-gone"
    COUNTS_DIFFER = "counts-differ"
    UNHEALTHY_DEVICES = "unhealthy-devices"
    NOT_OF_A_PLUGIN = "not-of-a-plugin"
    GPU_DISAGREES = "gpu-disagrees"
    GPU_OVERRIDDEN = "gpu-overridden"


class Finding(msgspec.Struct, frozen=True):
    """One problem or difference that was found."""

    code: Code
    severity: Severity
    subject: str
    """What it is about: a resource, a pod's uid, a container of it, or the file."""
    sentence: str
    remedy: str


def worst(findings: Iterable[Finding]) -> Severity | None:
    """The greatest severity; None if there is no finding."""
    order = list(Severity)
    return max((finding.severity for finding in findings), key=order.index, default=None)


def listed(names: Collection[str]) -> str:
    """Names in order, shortened after a few: `a, b, c, d and 96 more`."""
    ordered = sorted(names)
    shown = ", ".join(ordered[:_SHOWN])
    return shown if len(ordered) <= _SHOWN else f"{shown} and {len(ordered) - _SHOWN} more"


def counted(number: int, noun: str) -> str:
    """`1 device`, `2 devices`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
