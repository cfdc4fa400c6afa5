"""The public trace that lies beside the project, for tests that need it; and its generated twin for the others."""

import os
from functools import cache
from pathlib import Path

import pytest

from colocate.replay.load_trace import MachineTrace, generated_trace, read_trace
from colocate.replay.load_workload import ReplayWorkload, WorkloadSettings, workload_of

PUBLIC = Path(__file__).parents[3] / "shared/traces/bitbrains-rnd-2013-07.npz"
SMALL = WorkloadSettings(nodes=20, hours=9, warm_up=3, use=0.6)


@cache
def public() -> MachineTrace:
    if not PUBLIC.exists():
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must have the trace {PUBLIC}", pytrace=False)
        pytest.skip("the trace ../shared/traces/bitbrains-rnd-2013-07.npz is not here")
    return read_trace(PUBLIC)


@cache
def twin() -> MachineTrace:
    return generated_trace(seed=1, machines=60, days=29)


@cache
def small(seed: int = 1) -> ReplayWorkload:
    return workload_of(twin(), seed, SMALL)
