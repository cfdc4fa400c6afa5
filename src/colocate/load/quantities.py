"""Amounts of CPU and memory as the Kubernetes API writes them."""

import math
from functools import lru_cache

from colocate.model import quantity
from colocate.model.load import PerResource

Quantities = dict[str, str | int | float]

MOST = 2**63 - 1
"""Kubernetes counts no further: a quantity beyond it is taken for it."""


def stated(quantities: Quantities, prefix: str = "") -> PerResource:
    """Those of resources whose names begin with `prefix`; what is no quantity is taken as not stated."""
    cpu, memory = quantities.get(f"{prefix}cpu"), quantities.get(f"{prefix}memory")
    # Batch and mid CPU are counted in millicores; plain CPU is in cores.
    scale = 1 if prefix else 1000
    return PerResource(
        None if cpu is None else _value(cpu, scale), None if memory is None else _value(memory, 1)
    )


@lru_cache(maxsize=10_000)
def _value(text: str | int | float, scale: int) -> int | None:
    # Few different texts, in pods by the hundred thousand.
    try:
        return min(MOST, max(0, math.ceil(quantity.parse(text) * scale)))
    except ValueError:
        return None
