"""Where a process may die: every side effect announces itself here.

In production `reached` does nothing. A test sets COLOCATE_CRASH_AT=n and the process is killed with
SIGKILL at the n-th side effect, or COLOCATE_CRASH_LOG=file and each one is written down, which is how
the suite enumerates them and kills the process at every single one.
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
    """As the two variables do, for a process that has read them already."""
    global _crash_at, _log, _armed, _count
    _crash_at, _log, _count = crash_at, str(log) if log else None, 0
    _armed = bool(_crash_at or _log)


def reached(point: str) -> None:
    """Say that the side effect `point` is about to happen or has just happened."""
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
