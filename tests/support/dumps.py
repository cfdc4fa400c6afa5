"""Dumps of real machines, which are too large for this repository: beside it, or where COLOCATE_DUMPS says."""

import os
from pathlib import Path

import pytest

_FOLDER = Path(os.environ.get("COLOCATE_DUMPS", Path(__file__).parents[2].parent / "shared" / "topology"))
HYGON = "hygon-2s-8numa-16ccx-128cpu.sysfs.tar.bz2"
EPYC = "epyc-7451-2s-8numa.sysfs.tar.gz"


def dump(name: str) -> Path:
    """The path of a dump; the test is skipped where it is missing, and fails there under CI=true."""
    path = _FOLDER / name
    if not path.exists():
        message = f"the dump {name} is not in {_FOLDER}; its generated twin is tested all the same"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return path
