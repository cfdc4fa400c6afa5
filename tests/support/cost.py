"""What it costs to read bytes: memory at its peak, and CPU time against passing over the same bytes once.

Measured in a process of its own: what other tests have left behind would count for nothing or for everything.
"""

import subprocess
import sys
from pathlib import Path

import msgspec

_CHILD = """
import sys, time
import msgspec

def peak():
    # Not ru_maxrss, which counts what the parent had before this process became another.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

def timed(work):
    begun = time.process_time()
    done = work()
    return done, time.process_time() - begun

{setup}

with open(sys.argv[1], "rb") as file:
    body = file.read()
before = peak()
outcome, seconds = timed(lambda: read(body))
grown = peak() - before
def passing():
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except (RecursionError, msgspec.DecodeError):  # the latter: no JSON at all
        pass

_, passed = timed(passing)
print(msgspec.json.encode([str(outcome), grown / len(body), seconds / max(passed, 1e-9)]).decode())
"""


class Cost(msgspec.Struct, frozen=True, array_like=True):
    outcome: str
    """What `read` has returned, as text."""
    memory: float
    """Bytes at the peak for each byte that was read, besides the byte itself."""
    passes: float
    """CPU time, in times that it takes to pass over the bytes once and make nothing of them."""


def cost(setup: str, body: bytes, folder: Path) -> Cost:
    """Let a process read the body by the function `read` that `setup` defines."""
    file = folder / "body"
    file.write_bytes(body)
    done = subprocess.run(
        [sys.executable, "-c", _CHILD.format(setup=setup), str(file)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=Cost)
