"""docs/security.md: every promise names a test that is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_a_promise_names_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/security.md").read_text()))
    written = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", file.read_text())
    }
    assert len(named) > 50
    assert named <= written, sorted(named - written)
