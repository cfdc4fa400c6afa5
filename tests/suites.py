"""python -m tests.suites TARGET...: make each, whatever becomes of the others, and say at the end how they went.

What they print passes through. The closing repeats what pytest says last, and the tests that failed: the end of a log
is what is read.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

_CLOSING = re.compile(
    rb"=* ?\d+ (passed|failed|error|skipped|xfailed|deselected|warning)s?\b.* in [\d.]+s\b.*"
)
_FAILED = re.compile(rb"(FAILED|ERROR) .*::.*")
_MOST_LINES = 40
_LONGEST = 300
_INTERRUPTED = 130


class Suite:
    """A target of the Makefile, and how it went."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.code = 0
        self.seconds = 0.0
        self.closings: list[str] = []
        self.failed: list[str] = []

    def run(self, make: Sequence[str]) -> None:
        started = time.monotonic()
        with subprocess.Popen(
            [*make, self.target], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:

            def pass_on(number: int, _: FrameType | None) -> None:
                process.send_signal(number)
                raise KeyboardInterrupt

            signal.signal(signal.SIGTERM, pass_on)
            assert process.stdout is not None
            rest = b""
            while data := os.read(process.stdout.fileno(), 1 << 16):
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
                *lines, rest = (rest[-_LONGEST:] + data).split(b"\n")
                for line in lines:
                    self._notice(line)
            self.code = process.wait()
        self.seconds = time.monotonic() - started

    def _notice(self, line: bytes) -> None:
        text = line[:_LONGEST].decode(errors="replace")
        if _CLOSING.fullmatch(line):
            self.closings.append(text.strip("= "))
        elif _FAILED.match(line):
            self.failed.append(text)

    def told(self) -> list[str]:
        """Lines for the closing."""
        closing = "; ".join(self.closings)
        first = (
            f"{'FAILED' if self.code else 'ok':6}  {self.target:10} {self.seconds:5.0f} s  {closing}".rstrip()
        )
        more = len(self.failed) - _MOST_LINES
        shown = self.failed[:_MOST_LINES] + ([f"and {more} more"] if more > 0 else [])
        return [first, *(f"        {line}" for line in shown if self.code)]


def main(targets: Sequence[str], make: Sequence[str]) -> int:
    suites: list[Suite] = []
    try:
        for target in targets:
            suites.append(Suite(target))
            suites[-1].run(make)
    except KeyboardInterrupt:
        print(f"\ninterrupted in {targets[len(suites) - 1]}", flush=True)  # noqa: T201
        return _INTERRUPTED
    failed = [suite.target for suite in suites if suite.code]
    lines = ["", *(line for suite in suites for line in suite.told())]
    lines.append(f"{', '.join(failed)} failed" if failed else f"all {len(suites)} passed")
    print("\n".join(lines), flush=True)  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], [os.environ.get("MAKE", "make"), "--no-print-directory"]))
