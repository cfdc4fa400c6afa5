"""Every node by what it really uses and what is requested of it, the most loaded first."""

from collections.abc import Mapping

import msgspec

from colocate.load.heat import pressures
from colocate.load.table import LoadTable
from colocate.load.terms import Freshness, ResourceTerms


class ResourceRow(msgspec.Struct, frozen=True):
    """One resource, in percent."""

    used: float | None
    """Of the capacity; None without a fresh sample."""
    requested: float
    """Of what pods can have, by those that are bound: as kubectl describe has it."""
    unseen: float
    """Of the same, what the ledger counts for pods that the samples do not show yet, and for those on their way."""


class NodeRow(msgspec.Struct, frozen=True):
    node: str
    pressure: float
    cpu: ResourceRow
    memory: ResourceRow
    freshness: Freshness
    age: float | None
    unseen_pods: float
    heat: int | None = None
    """0 to 4, as it shows it by taints; None where nobody knows."""


def top(table: LoadTable, heats: Mapping[str, int] | None = None) -> list[NodeRow]:
    """With the heat of nodes where that is known."""
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
