"""pytest's plugin inside a VM: runs exactly the tests it was sent for, in their order, and tells of each at once."""

import json
import os
from collections.abc import Sequence

import pytest

from tests.vm.events import Port, Reported, Said, Started
from tests.vm.topology import TOPOLOGIES, Topology

TOPOLOGY = "COLOCATE_VM_TOPOLOGY"
"""The variable that names the topology of the VM that one is in."""

TESTS = "COLOCATE_VM_TESTS"
"""The variable that holds the ids of the tests, as a JSON list."""

_PLUGINS = (
    *("pytest_asyncio.plugin", "pytest_timeout", "_hypothesis_pytestplugin", "colocate.pytest_plugin"),
    "tests.vm.guest",
)
# Finding them takes longer than loading them, in a VM.


def command(python: str, tests: Sequence[str], timeout: float, options: Sequence[str]) -> list[str]:
    """pytest with this plugin, for these tests; a test that takes longer fails by itself, with its traceback."""
    modules = dict.fromkeys(test.partition("::")[0] for test in tests)
    return [
        *["env", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1", python, "-m", "pytest", "-p", "no:cacheprovider"],
        *(argument for plugin in _PLUGINS for argument in ("-p", plugin)),
        *[
            *options,
            "--no-header",
            "--no-summary",
            "--color=no",
            f"--timeout={timeout:g}",
            "--timeout-method=signal",
        ],
        *modules,
    ]


@pytest.fixture(scope="session")
def topology() -> Topology:
    """The hardware that the test runs on."""
    return TOPOLOGIES[os.environ[TOPOLOGY]]


class Teller:
    """Tells the host of every test's beginning and of every report."""

    def __init__(self, config: pytest.Config, port: Port) -> None:
        self._config = config
        self._port = port

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._port.tell(Started(nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._port.tell(Reported(data))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._port.tell(Said(f"{report.nodeid} cannot be collected in the VM:\n{report.longreprtext}"))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Teller(config, Port()))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {test: number for number, test in enumerate(json.loads(os.environ[TESTS]))}
    items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])
