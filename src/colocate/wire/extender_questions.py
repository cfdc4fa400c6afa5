"""What kube-scheduler posts to an HTTP extender: bytes to structs. What it reads back: `extender_answers`.

The protocol's own field names are read in any case of their letters. Of pods and nodes only their names are read
here: whoever asks for more says by a type of its own what it wants to know. Nothing is decided.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from colocate.errors import ColocateError

T = TypeVar("T")


class Unreadable(ColocateError):
    """A body is not what the protocol has there; the sentence says what was found."""


class TooMany(ColocateError):
    """A question is about more nodes than there can be."""


class SentNames(msgspec.Struct, frozen=True):
    """The names of a question as they were sent: one object to keep where they would be thousands."""

    body: bytes

    @property
    def size(self) -> int:
        return len(self.body)

    def read(self) -> Sequence[str]:
        return read_question(self.body).names


class Asked(msgspec.Struct, frozen=True):
    """One question: a pod, and the nodes that it might go to."""

    body: bytes
    sent_pod: Raw
    names: Sequence[str]
    sent_nodes: Sequence[Raw] | None = None
    """The same nodes in the same order, where whole ones were sent."""
    plain: bool = False
    """Whether it is sure that no name needs an escape in JSON."""

    @property
    def kept_names(self) -> SentNames:
        """The names, to be kept: as they came where they are the greater part of it, which costs nothing."""
        if self.sent_nodes is None and 2 * len(memoryview(self.sent_pod)) < len(self.body):
            return SentNames(self.body)
        return SentNames(_encode({"Pod": {}, "Nodes": None, "NodeNames": self.names}))

    def pod(self, kind: type[T]) -> T:
        """The pod, as much of it as `kind` has fields for; Unreadable where they do not fit."""
        return _read_object(_decoder(kind), self.sent_pod)

    def nodes(self, kind: type[T]) -> list[T] | None:
        """The nodes, likewise; None where only names were sent."""
        decoder = _decoder(kind)
        return None if self.sent_nodes is None else [_read_object(decoder, raw) for raw in self.sent_nodes]


class MetaPod(msgspec.Struct, frozen=True):
    uid: str = msgspec.field(name="UID", default="")


class MetaVictims(msgspec.Struct, frozen=True, rename="pascal"):
    """The pods that would have to leave a node."""

    pods: Sequence[MetaPod] | None = None
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class Preemption(msgspec.Struct, frozen=True):
    """One question: a pod, and who would have to leave which node for it."""

    sent_pod: Raw
    victims: Mapping[str, MetaVictims]


class _NodeName(msgspec.Struct, frozen=True):
    name: str


class _Node(msgspec.Struct, frozen=True):
    metadata: _NodeName


class _PodUid(msgspec.Struct, frozen=True):
    uid: str = ""


class _Pod(msgspec.Struct, frozen=True):
    metadata: _PodUid = _PodUid()


class _NodeList(msgspec.Struct, frozen=True):
    items: list[Raw] | UnsetType | None = UNSET


class _Arguments(msgspec.Struct, frozen=True, rename="pascal"):
    pod: Raw | UnsetType = UNSET
    nodes: _NodeList | UnsetType | None = UNSET
    node_names: list[str] | UnsetType | None = UNSET

    @property
    def complete(self) -> bool:
        """Whether every field was there by its own name, as from any kube-scheduler."""
        without = UNSET in (self.pod, self.nodes, self.node_names)
        return not without and not (self.nodes and self.nodes.items is UNSET)


class _Victims(msgspec.Struct, frozen=True, rename="pascal"):
    pods: list[_Pod] | None = None
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class _PreemptionArguments(msgspec.Struct, frozen=True, rename="pascal"):
    pod: Raw | UnsetType = UNSET
    node_name_to_victims: dict[str, _Victims | None] | UnsetType | None = UNSET
    node_name_to_meta_victims: dict[str, MetaVictims | None] | UnsetType | None = UNSET


_arguments = msgspec.json.Decoder(_Arguments)
_preemption_arguments = msgspec.json.Decoder(_PreemptionArguments)
_node = msgspec.json.Decoder(_Node)
_anything: msgspec.json.Decoder[object] = msgspec.json.Decoder(object)
_fields = msgspec.json.Decoder(dict[str, Raw])
_encode = msgspec.json.Encoder().encode

_NAMES = {name.lower(): name for name in ("Pod", "Nodes", "NodeNames", "items")}
_PREEMPTION_NAMES = {name.lower(): name for name in ("Pod", "NodeNameToVictims", "NodeNameToMetaVictims")}
_VICTIM_NAMES = {name.lower(): name for name in ("Pods", "NumPDBViolations")}


def read_question(body: bytes, most: int | None = None) -> Asked:
    """The body of a filter or prioritize call; Unreadable where it is none, TooMany with more than `most` nodes."""
    given = _read(_arguments, body)
    if not given.complete:
        given = _read(_arguments, _respelt(body, _NAMES, {"Nodes": lambda raw: _respelt(raw, _NAMES)}))
    pod = _pod(given.pod)
    _check_number(given.node_names or (given.nodes and given.nodes.items) or (), most)
    if given.node_names:
        return Asked(body, pod, given.node_names, plain=_escapes_nothing_but(pod, body))
    if given.nodes:
        sent = given.nodes.items or ()
        return Asked(body, pod, [_read(_node, raw).metadata.name for raw in sent], sent)
    if given.node_names is None or given.node_names is UNSET:
        raise Unreadable("the body has neither NodeNames nor Nodes; kube-scheduler sends one of them")
    return Asked(body, pod, ())


def read_preemption(body: bytes) -> Preemption:
    """The body of a preempt call; Unreadable where it is none."""
    given = _read(_preemption_arguments, body)
    if UNSET in (given.pod, given.node_name_to_victims, given.node_name_to_meta_victims):
        nested = {name: _respelt_victims for name in _PREEMPTION_NAMES.values() if name != "Pod"}
        given = _read(_preemption_arguments, _respelt(body, _PREEMPTION_NAMES, nested))
    pod = _pod(given.pod)
    if given.node_name_to_meta_victims:
        meta = {node: one or MetaVictims() for node, one in given.node_name_to_meta_victims.items()}
        return Preemption(pod, meta)
    whole = given.node_name_to_victims or {}
    return Preemption(pod, {node: _meta(one or _Victims()) for node, one in whole.items()})


def _escapes_nothing_but(pod: Raw, body: bytes) -> bool:
    """Whether the body has escapes in its pod at most: then names are in it as they are."""
    return b"\\" not in body or b"\\" not in body.replace(bytes(pod), b"", 1)


def _pod(given: Raw | UnsetType) -> Raw:
    if given is UNSET or not bytes(given).startswith(b"{"):
        raise Unreadable("the body has no Pod; kube-scheduler sends the whole pod that it schedules")
    return given


def _check_number(nodes: Sequence[object], most: int | None) -> None:
    if most is not None and len(nodes) > most:
        raise TooMany(f"the body asks about {len(nodes)} nodes, and {most} at most are judged at once")


def _meta(victims: _Victims) -> MetaVictims:
    pods = [MetaPod(pod.metadata.uid) for pod in victims.pods or ()]
    return MetaVictims(pods, victims.violations)


_decoders: dict[type, msgspec.json.Decoder[Any]] = {}
"""By the type that they read; a process has few, and making one costs more than using it."""


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    if kind not in _decoders:
        _decoders[kind] = msgspec.json.Decoder(kind)
    return _decoders[kind]


def _read(decoder: msgspec.json.Decoder[T], body: bytes | Raw) -> T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise Unreadable(f"the body does not read as kube-scheduler writes it: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"the body is not JSON: {error}") from None


def _read_object(decoder: msgspec.json.Decoder[T], raw: Raw) -> T:
    """An object of the API as Go reads it: what is null is as good as not there."""
    try:
        return _read(decoder, raw)
    except Unreadable:
        # Rare, and dear: Kubernetes itself writes no null where these types have a field.
        if b"null" not in bytes(raw):
            raise
    try:
        said = _encode(without_nulls(_read(_anything, raw)))
    except RecursionError as error:
        raise Unreadable(f"the body is nested too deeply: {error}") from None
    return _read(decoder, said)


def without_nulls(found: object) -> object:
    """A tree as Go reads it, at every depth."""
    match found:
        case dict():
            return {name: without_nulls(one) for name, one in found.items() if one is not None}
        case list():
            return [without_nulls(one) for one in found]
    return found


def _respelt(body: bytes | Raw, names: Mapping[str, str], nested: Mapping[str, Any] | None = None) -> bytes:
    """The same object with these names in their own spelling, and what is nested below them respelt too."""
    fields = _read(_fields, body)
    respelt: dict[str, Raw] = {}
    for field, raw in fields.items():
        name = names.get(field.lower(), field)
        inner = (nested or {}).get(name)
        respelt[name] = Raw(inner(raw)) if inner and bytes(raw) != b"null" else raw
    return _encode(respelt)


def _respelt_victims(raw: Raw) -> bytes:
    nodes = _read(_fields, raw)
    return _encode(
        {
            node: one if bytes(one) == b"null" else Raw(_respelt(one, _VICTIM_NAMES))
            for node, one in nodes.items()
        }
    )
