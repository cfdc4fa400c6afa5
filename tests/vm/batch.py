"""One boot's worth of tests: a VM runs them all while this machine takes their reports.

A VM that dies or hangs fails the test that was running then, with the console's last lines, and every test that
it did not get to. One that hangs before it is up has run nothing, and is booted again.
"""

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tests.vm import guest
from tests.vm.events import Exited, Ready, Reported, Said, Started
from tests.vm.image import Order
from tests.vm.machine import BOOT_SECONDS, Machine, MachineFailed, MachineSilent
from tests.vm.topology import TOPOLOGIES

TEST_SECONDS = 120.0
"""How long a test in a VM may take, unless it is marked otherwise."""

SLACK_SECONDS = 60.0
"""A VM that says nothing for this much longer than a test may take hangs."""

BOOTS = 3
"""An emulated machine of many CPUs hangs in one of some 25 boots while the machine below it is busy: QEMU lives, the
kernel's own clocks have stopped."""

_PASSED_ON = ("CI", "COLOCATE_TEST_LOG_LEVEL")


class Lost(Exception):
    """The VM brought no full report of a test; the message says why."""


class Batch:
    """Tests that share a boot. The VM runs beside the caller, in a thread of its own."""

    def __init__(self, topology: str, tests: Sequence[str], longest: float, options: Sequence[str]) -> None:
        """`longest` is what the slowest test may take; `options` are those of the pytest in the VM."""
        self.topology = topology
        self.tests = tests
        self._options = options
        self.booted = 0.0
        """Seconds until the VM was up; 0 if it never was."""
        self.took = 0.0
        """Seconds from the last boot to the end."""
        self.boots = 0
        self._silence = longest + SLACK_SECONDS
        self._reports: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._early: dict[str, list[dict[str, Any]]] = {}
        """Reports that came while another test's were awaited."""
        self._started = ""
        """The test that the VM began last."""
        self._ending = ""
        """How the VM ended, once it has; never empty then."""
        self._details: list[str] = []
        """What is told once of a VM that ended too early."""
        self._machine: Machine | None = None
        self._unwanted = False
        self._thread = threading.Thread(target=self._run, name=f"vm-{topology}", daemon=True)

    def start(self) -> None:
        """Boot, as soon as there is a place for one more VM, unless that was asked for before."""
        if not self._thread.ident:
            self._thread.start()

    def abandon(self) -> None:
        """End the VM if it runs, and do not start it if it does not."""
        self._unwanted = True
        if self._machine:
            self._machine.kill()

    def join(self) -> None:
        """Wait for the VM's end, if it was started."""
        if self._thread.ident:
            self._thread.join()

    def reports(self, test: str) -> Iterator[dict[str, Any]]:
        """A test's reports, as they come; those of other tests are kept until they are asked for."""
        mine = iter(self._early.pop(test, []))
        while (report := next(mine, None) or self._reports.get()) is not None:
            if report["nodeid"] != test:
                self._early.setdefault(report["nodeid"], []).append(report)
                continue
            yield report
            if report["when"] == "teardown":
                return
        self._reports.put(None)
        self.join()
        raise Lost(self._why(test))

    def _why(self, test: str) -> str:
        if not self._started:
            reason = f"Not run: {self._ending}, before its first test."
        elif self._started == test:
            reason = f"While this test was running, {self._ending}."
        else:
            reason = f"Not run: {self._ending}, after {self._started} had begun."
        details, self._details = self._details, []
        return "\n\n".join([reason, *details])

    def _run(self) -> None:
        try:
            for _ in range(BOOTS):
                if not self._run_once():
                    break
        except Exception as error:
            self._ending = f"the VM could not be started: {error!r}"
            raise
        finally:
            self._reports.put(None)

    def _run_once(self) -> bool:
        """Boot, and run the tests; whether that is worth another try."""
        hung = False
        with self._boot() as machine:
            self._machine = machine
            if not self._unwanted:
                self.boots += 1
                self._ending, hung = self._listen(machine)
                self._details.append(f"The console's last lines:\n{machine.console()}")
            self.took = time.monotonic() - machine.started
        return hung and not self.booted and not self._unwanted

    def _boot(self) -> Machine:
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment |= {guest.TOPOLOGY: self.topology, guest.TESTS: json.dumps(self.tests)}
        command = guest.command(sys.executable, self.tests, TEST_SECONDS, self._options)
        return Machine(TOPOLOGIES[self.topology], Order(command, environment))

    def _listen(self, machine: Machine) -> tuple[str, bool]:
        """Take in all that the VM tells; how it ended, and whether it hung."""
        hung = False
        try:
            for event in machine.events(self._silence, boot=BOOT_SECONDS):
                match event:
                    case Ready():
                        self.booted = time.monotonic() - machine.started
                    case Started(test):
                        self._started = test
                    case Reported(report):
                        self._reports.put(report)
                    case Said(text):
                        self._details.append(text)
                    case Exited(code):
                        ending = f"pytest in the VM ended with exit code {code}"
        except MachineFailed as error:
            ending, hung = str(error), isinstance(error, MachineSilent)
        return ending, hung
