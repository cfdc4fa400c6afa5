"""Crash points for tests: every side effect announces itself here.

In production `reached` does nothing. With COLOCATE_CRASH_AT=n the process kills itself with SIGKILL at the
n-th side effect; with COLOCATE_CRASH_LOG=file it writes each one to the file. The crash tests list the side effects
first, and then kill the process at every one.
"""

import os
import signal
import threading
from pathlib import Path

_crash_at = int(os.environ.get("COLOCATE_CRASH_AT", "0"))
_log = os.environ.get("COLOCATE_CRASH_LOG")
_armed = bool(_crash_at or _log)
_count = 0
_lock = threading.Lock()
"""Side effects happen in threads, too: each must see a number of its own, or the one to die at is missed."""


def arm(crash_at: int, log: Path | None) -> None:
    """Set both values in a process that has already read the variables."""
    global _crash_at, _log, _armed, _count
    _crash_at, _log, _count = crash_at, str(log) if log else None, 0
    _armed = bool(_crash_at or _log)


def reached(point: str) -> None:
    """Announce that the side effect `point` is about to happen or has just happened."""
    if not _armed:
        return
    global _count
    with _lock:
        _count += 1
        if _log:
            with Path(_log).open("a") as log:
                log.write(f"{_count} {point}\n")
        if _count == _crash_at:
            os.kill(os.getpid(), signal.SIGKILL)
