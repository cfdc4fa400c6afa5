"""The harness itself: whatever happens in a VM or to it is reported, at once and with its reason; nothing is left."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import until
from tests.vm.events import Ready
from tests.vm.image import REPO, Order
from tests.vm.machine import BOOT_SECONDS, NEEDS, Machine, MachineFailed
from tests.vm.topology import TOPOLOGIES

pytestmark = [pytest.mark.vm(), pytest.mark.needs(*NEEDS)]

NOTICED_SECONDS = 60
"""Much less than a VM may be silent for, and enough for a busy machine."""
SAMPLES = Path("tests/vm/samples")


def pytest_command(sample: str, *arguments: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "pytest",
        "--vm",
        "-p",
        "no:cacheprovider",
        *arguments,
        str(SAMPLES / sample),
    ]


def report_of(test: str, output: str) -> str:
    """What pytest printed about a test that failed."""
    found = re.search(
        rf"^_+ (?:ERROR at setup of )?{test}\[@mini\] _+$(.*?)^(?:_____|=====)",
        output,
        re.DOTALL | re.MULTILINE,
    )
    assert found, f"nothing about {test} in:\n{output}"
    return found[1]


@pytest.fixture(scope="module")
def gone_wrong() -> str:
    """The output of the sample in which everything goes wrong."""
    done = subprocess.run(pytest_command("going_wrong.py", "-rs"), cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_a_failure_in_the_vm_has_its_traceback_and_its_output(gone_wrong: str) -> None:
    report = report_of("test_fails", gone_wrong)
    assert "> " in report
    assert 'assert Path("/proc/sys/kernel/ostype").read_text() == "Plan 9\\n"' in report
    assert "AssertionError: assert 'Linux\\n' == 'Plan 9\\n'" in report
    assert "printed before the failure" in report
    assert "tests/vm/samples/going_wrong.py:" in report


def test_a_broken_fixture_is_an_error_of_the_setup(gone_wrong: str) -> None:
    assert "RuntimeError: the fixture is broken" in report_of("test_has_a_broken_fixture", gone_wrong)


def test_what_json_cannot_say_is_reported_all_the_same_and_so_is_much_of_it(gone_wrong: str) -> None:
    report = report_of("test_reports_what_json_cannot_say", gone_wrong)
    assert r"a name that is not UTF-8: \udcff" in report
    assert report.count("much output") > 50_000


def test_a_skip_keeps_its_reason(gone_wrong: str) -> None:
    assert re.search(r"^SKIPPED \[1\] .*for a reason$", gone_wrong, re.MULTILINE)


def test_a_test_that_takes_too_long_fails_and_the_next_one_runs(gone_wrong: str) -> None:
    report = report_of("test_takes_too_long", gone_wrong)
    assert "time.sleep(1000)" in report
    assert "Timeout" in report


def test_a_panic_fails_the_test_that_was_running_with_the_consoles_last_lines(gone_wrong: str) -> None:
    report = report_of("test_panics", gone_wrong)
    assert "While this test was running, the VM ended" in report
    assert "Kernel panic - not syncing: sysrq triggered crash" in report


def test_tests_after_a_panic_are_failures_that_say_they_did_not_run(gone_wrong: str) -> None:
    report = report_of("test_comes_after_the_panic", gone_wrong)
    assert "Not run: the VM ended" in report
    assert "going_wrong.py::test_panics had begun" in report


def test_all_are_counted_and_the_time_is_told(gone_wrong: str) -> None:
    assert re.search(r"5 failed, 1 passed, 1 skipped, 1 xfailed, 1 error in", gone_wrong)
    assert re.search(r"^mini: 9 tests, up after \d+ s, \d+ s in all$", gone_wrong, re.MULTILINE)


def test_a_hanging_vm_and_a_killed_one_are_noticed() -> None:
    with Machine(TOPOLOGIES["mini"], Order(["sleep", "1000"])) as machine:
        assert next(machine.events(BOOT_SECONDS)) == Ready()
        with pytest.raises(MachineFailed, match="said nothing for 1 s"):
            next(machine.events(1))
        killed = time.monotonic()
        os.kill(machine.pid, signal.SIGKILL)
        with pytest.raises(MachineFailed, match="QEMU was killed by SIGKILL"):
            next(machine.events(BOOT_SECONDS))
        assert time.monotonic() - killed < NOTICED_SECONDS


def qemus_of(pid: int) -> list[int]:
    """QEMU processes that a process has started."""
    children = [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    return [child for child in children if "qemu" in Path(f"/proc/{child}/comm").read_text()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A run of the sample that waits, with a folder of its own for temporary files, whose VM has been started."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    mounts = Path("/proc/mounts").read_text()
    with subprocess.Popen(
        pytest_command("waiting.py"),
        cwd=REPO,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        asyncio.run(until(lambda: bool(qemus_of(run.pid)), "QEMU to be started"))
        yield run
    assert list(temporary.iterdir()) == []
    assert Path("/proc/mounts").read_text() == mounts


def test_a_vm_killed_from_outside_is_a_failure_within_seconds(waiting: "subprocess.Popen[str]") -> None:
    (qemu,) = qemus_of(waiting.pid)
    killed = time.monotonic()
    os.kill(qemu, signal.SIGKILL)
    output, _ = waiting.communicate()
    assert time.monotonic() - killed < NOTICED_SECONDS
    assert waiting.returncode == 1
    assert "QEMU was killed by SIGKILL" in report_of("test_waits", output)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_vm_outlives_its_pytest(waiting: "subprocess.Popen[str]", number: signal.Signals) -> None:
    (qemu,) = qemus_of(waiting.pid)
    waiting.send_signal(number)
    waiting.wait()
    asyncio.run(until(lambda: not alive(qemu), "QEMU to end", NOTICED_SECONDS))
