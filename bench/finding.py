"""Finds the benches of a package and runs each in a process of its own.

Of its own, because gRPC takes one event loop in a process, and because memory that one bench has touched
would count for the next.
"""

import importlib
import os
import pkgutil
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from bench.ratio import Ratio, Row
from colocate.errors import ColocateError


class Bench(msgspec.Struct, frozen=True):
    """One file that measures something."""

    package: str
    name: str
    ratios: tuple[Ratio, ...]

    def run(self) -> list[Row]:
        """Measure; every ratio that is declared must come back, and no other."""
        done = subprocess.run(
            [sys.executable, "-m", "bench.alone", self.package, self.name],
            stdout=subprocess.PIPE,
            # Benches start processes; gRPC would say at each of them that it does not follow into a fork.
            env={**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0", "GRPC_VERBOSITY": "ERROR"},
            check=False,
        )
        if done.returncode:
            raise ColocateError(f"the bench {self.name} failed with exit code {done.returncode}; see above")
        rows = msgspec.msgpack.decode(done.stdout, type=list[Row])
        returned = {Ratio(row.name, row.against, row.threshold) for row in rows}
        if returned != set(self.ratios) or len(rows) != len(self.ratios):
            raise ColocateError(
                f"the bench {self.name} declares {_names(self.ratios)} and returned {_names(rows)}; "
                f"make bench() return one row for every entry of RATIOS"
            )
        return rows


def find(package: str = "bench") -> dict[str, Bench]:
    """The benches of a package by name: its modules that have RATIOS."""
    found = {}
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if module.name.startswith("_"):
            continue
        ratios = getattr(importlib.import_module(f"{package}.{module.name}"), "RATIOS", None)
        if ratios is not None:
            found[module.name] = Bench(package, module.name, tuple(ratios))
    return found


def _names(rows: Sequence[Ratio | Row]) -> str:
    return ", ".join(f"{row.name} ({_bar(row.threshold)})" for row in rows) or "nothing"


def _bar(threshold: float | None) -> str:
    return "no bar" if threshold is None else f"≤ {threshold:g}"
