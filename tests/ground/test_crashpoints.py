"""A process dies at the side effect that it was told to die at, in whichever thread that happens."""

import os
import signal
import subprocess
import sys
from pathlib import Path

THREADS = """
import sys, threading
from colocate.crashpoints import reached

sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=lambda: [reached("x") for _ in range(200)]) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_no_side_effect_is_missed_however_many_threads_have_some(tmp_path: Path) -> None:
    for number in range(100, 900, 100):
        log = tmp_path / str(number)
        variables = {"COLOCATE_CRASH_AT": str(number), "COLOCATE_CRASH_LOG": str(log)}
        done = subprocess.run([sys.executable, "-c", THREADS], env={**os.environ, **variables})
        assert done.returncode == -signal.SIGKILL, number
        assert len(log.read_text().splitlines()) == number
