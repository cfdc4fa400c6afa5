"""Runs of pytest in which no VM is started: what they leave out, skip or refuse, and what they say."""

import os
import subprocess
import sys

import pytest

from tests.vm.image import REPO


def run(*arguments: str, ci: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=REPO,
        env={**os.environ, "CI": ci},
        capture_output=True,
        text=True,
    )


def test_without_the_option_tests_for_vms_are_left_out_with_a_hint() -> None:
    done = run("tests/vm/samples/waiting.py")
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "1 deselected" in done.stdout
    assert "1 tests need VMs: make test-vm" in done.stdout


def test_without_qemu_they_are_skipped_and_the_remedy_is_told() -> None:
    done = run("-p", "tests.vm.samples.no_qemu", "--vm", "tests/vm/samples/waiting.py")
    assert done.returncode == 0
    assert "qemu is not here: run tools/install-components as root on Debian" in done.stdout
    assert "1 skipped" in done.stdout


def test_without_qemu_they_fail_in_ci() -> None:
    done = run("-p", "tests.vm.samples.no_qemu", "--vm", "tests/vm/samples/waiting.py", ci="true")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "CI must have qemu: tools/install-components installs it" in done.stdout


def test_with_the_option_all_other_tests_are_left_out_and_topologies_are_in_the_names() -> None:
    done = run("--vm", "--collect-only", "-q", "tests/model/test_pod.py", "tests/vm/test_topology_facts.py")
    assert "tests/model" not in done.stdout
    assert "tests/vm/test_topology_facts.py::test_every_cpu_is_online[@epyc-smt]\n" in done.stdout


def test_several_pytest_workers_would_each_start_vms_and_are_refused() -> None:
    done = run("--vm", "-n", "2", "tests/vm/samples/waiting.py")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "leave out -n" in done.stderr
