"""Every suite is run, whatever becomes of the others, and the end of the log says how they went."""

from pathlib import Path

import pytest

from tests.suites import main

MAKEFILE = """\
bad:
	@echo "FAILED tests/x.py::y - boo"; echo "== 1 failed, 2 passed in 3.20s =="; exit 1
good:
	@echo "120 passed, 3 deselected in 63.20s (0:01:03)"
plain:
	@printf 'no newline at the end'
"""


@pytest.fixture
def make(tmp_path: Path) -> list[str]:
    (tmp_path / "Makefile").write_text(MAKEFILE)
    return ["make", "--no-print-directory", "-f", str(tmp_path / "Makefile")]


def test_a_suite_that_fails_does_not_keep_others_from_running(
    make: list[str], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["bad", "good", "plain"], make) == 1
    lines = [line for line in capfdbinary.readouterr().out.decode().splitlines() if line]
    assert "no newline at the end" in lines
    *_, bad, named, good, plain, last = lines
    assert bad.split() == ["FAILED", "bad", "0", "s", "1", "failed,", "2", "passed", "in", "3.20s"]
    assert named.strip() == "FAILED tests/x.py::y - boo"
    assert good.split() == [
        "ok",
        "good",
        "0",
        "s",
        "120",
        "passed,",
        "3",
        "deselected",
        "in",
        "63.20s",
        "(0:01:03)",
    ]
    assert plain.split() == ["ok", "plain", "0", "s"]
    assert last == "bad failed"


def test_all_that_pass_are_a_success(make: list[str], capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["good", "plain"], make) == 0
    assert capfdbinary.readouterr().out.decode().splitlines()[-1] == "all 2 passed"
