"""Encodes the answers of an HTTP extender to kube-scheduler. `extender_questions` decodes its requests.

Field names have Go's spelling. Scores are integers, or Go would refuse the whole answer. Whole nodes go back byte
for byte. Nothing is decided here.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import itemgetter

import msgspec
from msgspec import Raw

from colocate.wire.extender_questions import Asked, MetaVictims


class _Priority(msgspec.Struct, frozen=True, rename="pascal", gc=False):
    host: str
    score: int


class _NodeList(msgspec.Struct, frozen=True):
    items: Sequence[Raw]


class _FilterReply(msgspec.Struct, frozen=True, rename="pascal"):
    nodes: _NodeList | None = None
    node_names: Sequence[str] | None = None
    failed_nodes: Mapping[str, str] = {}
    failed_and_unresolvable_nodes: Mapping[str, str] = {}
    error: str = ""


class _PreemptionReply(msgspec.Struct, frozen=True):
    victims: Mapping[str, MetaVictims] = msgspec.field(name="NodeNameToMetaVictims")


class _BindingReply(msgspec.Struct, frozen=True, rename="pascal"):
    error: str = ""


_encode = msgspec.json.Encoder().encode


def priorities(names: Sequence[str], scores: Sequence[int], *, plain: bool = False) -> bytes:
    """The answer to a prioritize call: a score for each name, in their order.

    Names that need no escapes are joined as text, which is several times faster than encoding them.
    """
    if len(names) != len(scores):
        raise ValueError(f"{len(scores)} scores for {len(names)} nodes")
    if plain and len(names) > 1:
        # A score outside 0 to 100, which no policy gives, is encoded.
        with suppress(KeyError):
            return _joined(names, scores)
    return _encode(list(map(_Priority, names, scores)))


def filtered(asked: Asked, failed: Mapping[str, str], unresolvable: Mapping[str, str]) -> bytes:
    """The answer to a filter call: every node passes except those that fail, each with a reason.

    Preemption cannot help on an unresolvable node.
    """
    if not failed and not unresolvable:
        names, nodes = asked.names, asked.sent_nodes
    else:
        out = failed.keys() | unresolvable.keys()
        left = [number for number, name in enumerate(asked.names) if name not in out]
        names = [asked.names[number] for number in left]
        nodes = None if asked.sent_nodes is None else [asked.sent_nodes[number] for number in left]
    if nodes is None:
        return _encode(_FilterReply(None, names, failed, unresolvable))
    return _encode(_FilterReply(_NodeList(nodes), None, failed, unresolvable))


def filter_error(reason: str) -> bytes:
    """The answer to a filter call that could not be judged; kube-scheduler puts the reason into an event."""
    return _encode(_FilterReply(error=reason))


def preempting(victims: Mapping[str, MetaVictims]) -> bytes:
    """The answer to a preempt call: the nodes where preemption may go on, and their victims."""
    return _encode(_PreemptionReply(victims))


def bound(error: str = "") -> bytes:
    """The answer to a bind call: why the pod is not bound; empty where it is."""
    return _encode(_BindingReply(error))


_BETWEEN = {score: f'","Score":{score}}},{{"Host":"' for score in range(101)}
"""The text between two names, by the score of the first."""


def _joined(names: Sequence[str], scores: Sequence[int]) -> bytes:
    pieces = ['[{"Host":"'] * (1 + 2 * len(names))
    pieces[1::2] = names
    pieces[2::2] = itemgetter(*scores)(_BETWEEN)
    pieces[-1] = f'","Score":{scores[-1]}}}]'
    return "".join(pieces).encode()
