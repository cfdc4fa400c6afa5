"""Every node by what it really uses and what is requested of it, the most loaded first."""

from collections.abc import Mapping

import msgspec

from colocate.load.heat import pressures
from colocate.load.table import LoadTable
from colocate.load.terms import Freshness, ResourceTerms


class ResourceRow(msgspec.Struct, frozen=True):
    """One resource, in percent."""

    used: float | None
    """Percent of the capacity in use; None without a fresh sample."""
    requested: float
    """Percent of the room that bound pods request, as in kubectl describe."""
    unseen: float
    """Percent of the room that the ledger counts for pods that samples do not show yet, assumed pods included."""


class NodeRow(msgspec.Struct, frozen=True):
    node: str
    pressure: float
    cpu: ResourceRow
    memory: ResourceRow
    freshness: Freshness
    age: float | None
    unseen_pods: float
    heat: int | None = None
    """0 to 4, as its taints show it; None where it is unknown."""


def top(table: LoadTable, heats: Mapping[str, int] | None = None) -> list[NodeRow]:
    """Rows of all nodes; `heats` is the heat of nodes where it is known."""
    shown, rows = heats or {}, []
    for name, pressure in pressures(table).items():
        terms, requested = table.terms(name), table.pods.on(name).requested
        age = None if terms.sampled_at is None else table.now - terms.sampled_at
        rows.append(
            NodeRow(
                name,
                pressure,
                _row(terms.cpu, requested.cpu),
                _row(terms.memory, requested.memory),
                terms.freshness,
                age,
                terms.unseen_pods,
                shown.get(name),
            )
        )
    return sorted(rows, key=lambda row: (-row.pressure, row.node))


def _row(terms: ResourceTerms, requested: int) -> ResourceRow:
    return ResourceRow(
        terms.percent if terms.measured else None,
        requested * terms.per_unit,
        terms.ledger * terms.per_unit,
    )
