"""What all tests share: an embedded kubelet that must leave nothing behind, and real components.

What costs much to import is imported where it is used: in a VM that takes half a minute.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.room.folders import package_index
from tests.support import components
from tests.vm import guest

if TYPE_CHECKING:
    from colocate.testing import TestNode
    from tests.support.prometheus import Metrics

# As a process of Colocate's own has them: tests load gRPC, fork, and read what is written to standard error.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# Here the machine may be busy, and a test that waits in vain is a fault already.
os.environ.setdefault("COLOCATE_TEST_PATIENCE", "60")

# A shell's background job ignores SIGINT, and what it starts inherits that: programs under test must end by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# In a VM tests.vm.guest has its place.
pytest_plugins = [] if guest.TOPOLOGY in os.environ else ["tests.vm.plugin"]

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")


@pytest.fixture(autouse=True, scope="session")
def _quiet_logs() -> None:
    if telemetry := sys.modules.get("colocate.telemetry"):  # else nothing that was collected can log
        telemetry.configure_logs("text", os.environ.get("COLOCATE_TEST_LOG_LEVEL", "critical"))
        telemetry.register_metrics()


@pytest.fixture(autouse=True, scope="session")
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What kubectl, pip and shells read and keep in a home; on a cluster of the user's, theirs may hold the login."""
    if "COLOCATE_KUBECONFIG" in os.environ:
        return
    for name in [name for name in os.environ if name.startswith("XDG_")]:
        del os.environ[name]
    os.environ |= {**package_index(os.environ), "HOME": str(tmp_path_factory.mktemp("home"))}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test that needs a component is skipped where it is missing, and fails there under CI=true."""
    for mark in item.iter_markers("needs"):
        components.require(*mark.args)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what a row of dots does not: comparisons, and at how many places processes were killed."""
    deaths, points = 0, set()
    for report in terminalreporter.getreports("passed"):
        properties = dict(report.user_properties)
        deaths += properties.get("deaths", 0)
        points.update(properties.get("crash points", ()))
        for line in properties.get("printed", ()):
            terminalreporter.write_line(line)
    if points:
        terminalreporter.write_line(f"kill -9: {deaths} deaths at {len(points)} distinct side effects")


@pytest.fixture
async def node() -> "AsyncIterator[TestNode]":
    """A node with an embedded kubelet; the test fails if a task or a socket is left."""
    from colocate.testing import embedded_kubelet as new_node

    async with new_node() as node:
        yield node
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"tasks left behind: {left}"


@pytest.fixture
async def metrics(tmp_path: Path) -> "AsyncIterator[Metrics]":
    """A real Prometheus, which scrapes the node-exporters that the test starts."""
    from tests.support.prometheus import Metrics

    async with Metrics(tmp_path / "metrics") as running:
        yield running


@pytest.fixture
def recordings() -> Path:
    return Path(__file__).parent / "data" / "recordings"
