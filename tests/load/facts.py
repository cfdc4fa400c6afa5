"""Nodes, samples and pods for tests, said in few words."""

from colocate.load.settings import LedgerSettings, LoadSettings
from colocate.load.table import LoadTable
from colocate.model.load import (
    Amount,
    BoundPod,
    ContainerAsk,
    NodeFacts,
    NodeLoad,
    PerResource,
    PodFacts,
    PodShape,
    Usage,
)

NOW = 1_700_000_000.0
GIB = 1 << 30
SIZE = Amount(8_000, 32 * GIB)
NO_LIMIT = PerResource()


def node(name: str, size: Amount = SIZE) -> NodeFacts:
    return NodeFacts(name, size, size)


def load(cpu: float | None, memory: float | None, *, at: float = NOW, deviation: float = 0.0) -> NodeLoad:
    return NodeLoad(
        None if cpu is None else Usage(cpu, at, deviation),
        None if memory is None else Usage(memory, at, deviation),
    )


def pod(
    uid: str,
    cpu: int | None = 50,
    memory: int | None = 100 << 20,
    *,
    owner: str = "",
    limit: PerResource = NO_LIMIT,
) -> PodFacts:
    asked = ContainerAsk(request=PerResource(cpu, memory), limit=limit)
    return PodFacts(uid, f"default/{uid}", PodShape((asked,)), owner=owner)


def bound(uid: str, node: str, at: float = NOW) -> BoundPod:
    return BoundPod(pod(uid), node, at)


def table(loads: dict[str, NodeLoad], settings: LoadSettings | None = None, size: Amount = SIZE) -> LoadTable:
    made = LoadTable(settings or LoadSettings())
    made.add_nodes(node(name, size) for name in loads)
    made.observe(loads, NOW)
    return made


EXACT = LedgerSettings(least_percent=0, expiry=0)
"""Counts pods by nothing but their estimates."""
