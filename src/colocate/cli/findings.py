"""Findings for people: a mark, the code, the sentence, and the remedy below it."""

from collections.abc import Iterator, Sequence

from colocate.cli.output import visible
from colocate.devices.findings import Finding, Severity

MARKS = {Severity.INFO: "·", Severity.WARNING: "!", Severity.ERROR: "✗"}


def lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Two lines for each."""
    for finding in findings:
        yield visible(f"{MARKS[finding.severity]} {finding.code}: {finding.sentence}")
        yield visible(f"  → {finding.remedy}")
