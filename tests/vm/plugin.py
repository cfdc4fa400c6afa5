"""pytest's plugin on this machine: sends the tests marked `vm` into VMs and reports them like any other.

With --vm only tests marked `vm` are run, without it only the others, and those that are marked `here=True`.
Tests are batched by topology, a boot for each.
"""

from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.support import components
from tests.vm import image
from tests.vm.batch import TEST_SECONDS, Batch, Lost
from tests.vm.machine import NEEDS
from tests.vm.topology import TOPOLOGIES

_HERE = "started from here"
"""Where a test runs that starts VMs itself, in the table of times."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--vm", action="store_true", help="run the tests marked `vm`, and no others")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("vm"):
        config.pluginmanager.register(WithoutVms())
        return
    if config.getoption("numprocesses", None):
        raise pytest.UsageError("--vm runs its VMs side by side by itself: leave out -n")
    config.pluginmanager.register(VmRunner())


@pytest.fixture(scope="session")
def topology() -> object:
    """The hardware that a test in a VM runs on; it has another fixture of this name."""
    return pytest.fail("this test runs on this machine, and has no topology: mark it without here=True")


class VmItem(pytest.Item):
    """A test that runs in a VM; the same test in two topologies is two of these."""

    def __init__(self, *, test: pytest.Item, topology: str, **kwargs: object) -> None:
        super().__init__(**kwargs)  # type: ignore[arg-type]
        self.inside = test.nodeid
        self.topology = topology
        timeout = test.get_closest_marker("timeout")
        self.seconds = float(timeout.args[0]) if timeout else TEST_SECONDS
        """How long it may take, in the VM; waiting for the VM is no part of it, so nothing is timed here."""
        self.own_markers = [mark for mark in test.own_markers if mark.name != "timeout"]
        self.add_marker(pytest.mark.timeout(0))
        self.keywords.update(test.keywords)
        self._info = test.reportinfo()

    def reportinfo(self) -> tuple[Path, int | None, str]:
        path, line, _ = self._info
        return Path(path), line, self.name

    def setup(self) -> None:
        """Only called where there can be no VM; ends as for any test that needs a component."""
        components.require(*NEEDS)

    def runtest(self) -> None:
        raise AssertionError("only a VM runs this")


class WithoutVms:
    """A run without --vm."""

    def __init__(self) -> None:
        self._left_out: list[pytest.Item] = []

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        self._left_out = [item for item in items if (mark := _mark(item)) and not mark.kwargs.get("here")]
        if self._left_out:
            config.hook.pytest_deselected(items=self._left_out)
            items[:] = [item for item in items if item not in self._left_out]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._left_out:
            terminalreporter.write_line(f"{len(self._left_out)} tests need VMs: make test-vm, or pytest --vm")


class VmRunner:
    """A run with --vm."""

    def __init__(self) -> None:
        self._batches: dict[str, Batch] = {}
        self._seconds: dict[tuple[str, str], float] = defaultdict(float)
        """By topology and module."""

    @pytest.hookimpl(wrapper=True)
    def pytest_pycollect_makeitem(self) -> Generator[None, object, object]:
        made = yield
        if not isinstance(made, list):
            return made
        return [
            placed for node in made for placed in (_in_vms(node) if isinstance(node, pytest.Item) else [node])
        ]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Tests that start VMs themselves come first, then those of one boot after those of another."""
        for item in items:
            if (mark := _mark(item)) and mark.args and not isinstance(item, VmItem):
                raise pytest.UsageError(
                    f"{item.nodeid} cannot be sent into a VM: write it as a plain function"
                )
        unmarked = [item for item in items if not _mark(item)]
        if unmarked:
            config.hook.pytest_deselected(items=unmarked)
        order = {topology: number for number, topology in enumerate(TOPOLOGIES)}
        items[:] = sorted(
            (item for item in items if _mark(item)),
            key=lambda item: order[item.topology] if isinstance(item, VmItem) else -1,
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """The first VM runs beside the tests that start VMs themselves; together they are as many as run at once."""
        if session.config.option.collectonly or components.missing(*NEEDS):
            return
        image.compile_sources()
        for topology in TOPOLOGIES:
            items = [item for item in session.items if isinstance(item, VmItem) and item.topology == topology]
            if items:
                longest = max(item.seconds for item in items)
                tests = [item.inside for item in items]
                self._batches[topology] = Batch(topology, tests, longest, _options(session.config))
        for batch in list(self._batches.values())[:1]:
            batch.start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Without a VM the item's own setup says what is missing."""
        if not isinstance(item, VmItem) or item.topology not in self._batches:
            return None
        for batch in self._batches.values():
            batch.start()
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in _reports(item, self._batches[item.topology]):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_sessionfinish(self) -> None:
        """Nothing outlives the run, also one that is interrupted."""
        for batch in self._batches.values():
            batch.abandon()
        for batch in self._batches.values():
            batch.join()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        module, _, name = report.nodeid.partition("::")
        topology = name.rpartition("@")[2].removesuffix("]")
        self._seconds[topology if topology in TOPOLOGIES else _HERE, module] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("time of tests in VMs")
        for place in (_HERE, *TOPOLOGIES):
            if batch := self._batches.get(place):
                boot = f"up after {batch.booted:.0f} s" if batch.booted else "never up"
                boot += f" in {batch.boots} boots" if batch.boots > 1 else ""
                terminalreporter.write_line(
                    f"{place}: {len(batch.tests)} tests, {boot}, {batch.took:.0f} s in all"
                )
            for (where, module), seconds in self._seconds.items():
                if where == place:
                    terminalreporter.write_line(f"{seconds:6.0f} s  {module}, {place}")


def _mark(item: pytest.Item) -> pytest.Mark | None:
    return item.get_closest_marker("vm")


def _in_vms(item: pytest.Item) -> list[pytest.Item]:
    """A test once for each topology that it is marked with; any other stays as it is."""
    mark = _mark(item)
    if not mark or not mark.args:
        return [item]
    for topology in mark.args:
        if topology not in TOPOLOGIES:
            raise pytest.UsageError(f"{item.nodeid}: no topology {topology!r}, only {', '.join(TOPOLOGIES)}")
    assert item.parent is not None
    return [
        VmItem.from_parent(item.parent, name=_name(item, topology), test=item, topology=topology)
        for topology in mark.args
    ]


def _name(item: pytest.Item, topology: str) -> str:
    """The test's name with the topology as its last parameter, so that pytest finds it by its plain name."""
    return f"{item.name[:-1]}@{topology}]" if item.name.endswith("]") else f"{item.name}[@{topology}]"


def _options(config: pytest.Config) -> list[str]:
    """How reports are to look, for the pytest that makes them."""
    options = [f"--verbosity={config.get_verbosity() or -1}", f"--tb={config.getoption('tbstyle')}"]
    return [*options, *(["--showlocals"] if config.getoption("showlocals") else [])]


def _reports(item: VmItem, batch: Batch) -> Iterator[pytest.TestReport]:
    """The reports that the VM made of a test, under the name that the test has here."""
    try:
        for data in batch.reports(item.inside):
            report = item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
            report.nodeid, report.location = item.nodeid, item.location
            if isinstance(report.longrepr, list):  # a skip's place and reason, which JSON made a list of
                report.longrepr = tuple(report.longrepr)
            yield report
    except Lost as lost:
        yield pytest.TestReport(item.nodeid, item.location, dict(item.keywords), "failed", str(lost), "call")
