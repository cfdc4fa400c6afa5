"""docs/security.md promises nothing that no test shows."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "security.md"


def test_every_test_that_the_page_on_security_names_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    there = {
        name for file in TESTS.rglob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text())
    }
    assert named
    assert named - there == set()
