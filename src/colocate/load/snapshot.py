"""All facts of a table as data, from which any other process gives the same answers."""

from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import msgspec

from colocate.errors import UserError
from colocate.load.demand import AS_ESTIMATED, Calibration, Learned, Ratio
from colocate.load.ledger import Assumption
from colocate.load.pods import Departed
from colocate.load.settings import LoadSettings
from colocate.load.table import LoadTable
from colocate.model.load import BoundPod, NodeFacts, NodeLoad, PodFacts, PodUsage

VERSION = 2

Moment = Annotated[float, msgspec.Meta(ge=0, le=253_402_300_799)]
"""No calendar goes beyond the year 9999."""


class LoadSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The facts of a table at one moment."""

    taken_at: Moment
    settings: LoadSettings
    nodes: tuple[NodeFacts, ...] = ()
    loads: dict[str, NodeLoad] = {}
    pods: tuple[BoundPod, ...] = ()
    usages: dict[str, PodUsage] = {}
    corrections: dict[str, Ratio] = {}
    unseen: tuple[str, ...] = ()
    """Uids of the pods that the ledger has on their nodes."""
    assumptions: tuple[Assumption, ...] = ()
    learned: tuple[Learned, ...] = ()
    overall: Ratio = AS_ESTIMATED
    """The ratio for pods of unknown owners."""
    departed: dict[str, tuple[Departed, ...]] = {}
    """By node, the pods that its samples may still show."""
    version: int = VERSION


def take(table: LoadTable) -> LoadSnapshot:
    pods = table.pods
    return LoadSnapshot(
        table.now,
        table.settings,
        tuple(table.nodes.values()),
        dict(table.loads),
        tuple(pods.bound.values()),
        dict(pods.usages),
        dict(pods.corrections),
        table.ledger.bound,
        table.ledger.assumptions,
        pods.calibration.learned,
        pods.calibration.overall,
        dict(pods.departed),
    )


def without(snapshot: LoadSnapshot, pod: PodFacts) -> LoadSnapshot:
    """The snapshot without that pod, by uid or name: where it runs, it would count against itself."""
    pods = tuple(one for one in snapshot.pods if pod.uid != one.pod.uid and pod.key != one.pod.key)
    return msgspec.structs.replace(snapshot, pods=pods)


def restore(snapshot: LoadSnapshot, settings: LoadSettings | None = None) -> LoadTable:
    """A table that answers as the one that the snapshot is of; with other settings, as it would with those."""
    table = LoadTable(settings or snapshot.settings, Calibration(snapshot.learned, snapshot.overall))
    table.add_nodes(snapshot.nodes)
    table.observe(snapshot.loads, snapshot.taken_at)
    unseen = set(snapshot.unseen)
    for bound in snapshot.pods:
        uid = bound.pod.uid
        table.restore(bound, snapshot.corrections.get(uid, AS_ESTIMATED), unseen=uid in unseen)
    table.pods.take_usages(snapshot.usages)
    table.pods.restore_departed(snapshot.departed)
    for assumption in snapshot.assumptions:
        table.assume(assumption.uid, assumption.nodes, assumption.demand, assumption.since)
    return table


def encode(snapshot: LoadSnapshot) -> bytes:
    return b"".join(pieces(snapshot))


def pieces(snapshot: LoadSnapshot, most: int = 1000) -> Iterator[bytes]:
    """The encoded snapshot in pieces of at most `most` pods or nodes: encoding a large cluster takes a second."""
    before = b"{"
    for name in snapshot.__struct_fields__:
        yield before + msgspec.json.encode(name) + b":"
        value = getattr(snapshot, name)
        if isinstance(value, tuple):
            yield from _list_pieces(value, most)
        elif isinstance(value, dict):
            yield from _mapping_pieces(value, most)
        else:
            yield msgspec.json.encode(value)
        before = b","
    yield b"}"


def _list_pieces(value: tuple[object, ...], most: int) -> Iterator[bytes]:
    before = b"["
    for start in range(0, len(value), most):
        yield before + msgspec.json.encode(value[start : start + most])[1:-1]
        before = b","
    yield b"]" if value else b"[]"


def _mapping_pieces(value: dict[str, object], most: int) -> Iterator[bytes]:
    before = b"{"
    items = iter(value.items())
    while some := dict(islice(items, most)):
        yield before + msgspec.json.encode(some)[1:-1]
        before = b","
    yield b"}" if value else b"{}"


class _Version(msgspec.Struct):
    version: int = 0


def decode(text: bytes, source: str) -> LoadSnapshot:
    """Read one; `source` is what an error calls it."""
    try:
        version = msgspec.json.decode(text, type=_Version).version
        if version != VERSION:
            raise UserError(
                f"{source} is a snapshot of version {version}, but this Colocate reads version {VERSION}; "
                f"take it again with 'colocate scheduler snapshot'"
            )
        return msgspec.json.decode(text, type=LoadSnapshot)
    except msgspec.DecodeError as error:
        raise UserError(
            f"{source} is not a snapshot from 'colocate scheduler snapshot': {error}; take it again"
        ) from None
