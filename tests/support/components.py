"""Real components that tests run against: which program stands for each, and where it may be."""

import shutil
import sys
from pathlib import Path

PROGRAMS = {
    "kubectl": "kubectl",
    "node-exporter": "prometheus-node-exporter",
    "prometheus": "prometheus",
    "promtool": "promtool",
    "protoc": "protoc",
    "strace": "strace",
}
"""By component, the program; tools/install-components knows the packages."""

# The last is where tools/install-components unpacks a package that clashes with others.
_PLACES = [Path(sys.executable).parent, Path(__file__).parents[2] / ".components" / "usr" / "bin"]


def find(name: str) -> str | None:
    """The program of a component: on the PATH, in this virtual environment, or unpacked here."""
    program = PROGRAMS[name]
    return shutil.which(program) or next((str(p / program) for p in _PLACES if (p / program).exists()), None)


def missing(*names: str) -> str:
    """The first of the components that this machine lacks, or nothing."""
    return next((name for name in names if find(name) is None), "")
