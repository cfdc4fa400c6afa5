"""Every way in which a test can end, the last of which takes the VM down."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.vm("mini")


@pytest.fixture
def broken() -> None:
    raise RuntimeError("the fixture is broken")


def test_passes() -> None:
    assert Path("/proc/cmdline").exists()


def test_fails() -> None:
    sys.stdout.write("printed before the failure\n")
    assert Path("/proc/sys/kernel/ostype").read_text() == "Plan 9\n"


def test_has_a_broken_fixture(broken: None) -> None:
    raise AssertionError("never reached")


def test_is_skipped() -> None:
    pytest.skip("for a reason")


@pytest.mark.xfail(reason="known")
def test_is_known_to_fail() -> None:
    raise AssertionError("as expected")


def test_reports_what_json_cannot_say(record_property: Callable[[str, object], None]) -> None:
    record_property("a path", Path("/x"))
    sys.stdout.write("much output" * 100_000)
    raise AssertionError("a name that is not UTF-8: \udcff")


@pytest.mark.timeout(1)
def test_takes_too_long() -> None:
    time.sleep(1000)


def test_panics() -> None:
    Path("/proc/sysrq-trigger").write_text("c")


def test_comes_after_the_panic() -> None:
    raise AssertionError("never reached")
