"""Decodes the requests of kube-scheduler to an HTTP extender. `extender_answers` encodes the answers.

The protocol's field names are read in upper or lower case. Pods and nodes are read only as far as their names;
callers that need more pass a type of their own. Nothing is decided here.

A body is checked against bounds before it is decoded, because a byte of JSON may become fifty bytes of memory:
parts are first kept as raw bytes, their elements are counted, and only then are they decoded.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from colocate.errors import ColocateError
from colocate.wire.body_meter import TooMany as TooMany
from colocate.wire.body_meter import preemption_meter, question_meter

T = TypeVar("T")

_LARGEST_POD = 4 << 20
"""Bytes. No API server takes more than 3 MiB in one request."""
_POD_ELEMENTS = 200_000
"""Values in a pod. Real pods have hundreds; a pod with more is an attack on its readers."""
_RESPELT_ELEMENTS = 100_000
"""Values in a question whose fields are not all spelt as by kube-scheduler; such a question is decoded field by
field."""
_SMALL = 16 << 10
"""Bytes. A smaller body cannot hold too many values, and is not counted."""
_FEW = 64 << 10
"""Bytes of a question that is decoded in one go: a thousand names, or some megabytes of memory if it is hostile."""


_Name = Annotated[str, msgspec.Meta(max_length=253)]
"""The name of a node, at most as long as the API allows: names are kept with decisions."""


_Uid = Annotated[str, msgspec.Meta(max_length=128)]


class Unreadable(ColocateError):
    """A body does not fit the protocol; the message says what was found."""


class Asked(msgspec.Struct, frozen=True, gc=False):
    """A filter or prioritize question: a pod, and the nodes that it might go to."""

    body: bytes
    sent_pod: Raw
    names: Sequence[str]
    sent_nodes: Sequence[Raw] | None = None
    """The nodes of `names` as they were sent, in the same order; None where only names were sent."""
    plain: bool = False
    """Whether certainly no name needs an escape in JSON."""

    @property
    def kept_names(self) -> bytes:
        """The names as one object to keep in place of thousands; `read_names` reads them. Where names are the
        greater part of the body, they stay as they were sent, which costs nothing."""
        if self.sent_nodes is None and 2 * len(memoryview(self.sent_pod)) < len(self.body):
            return self.body
        return _encode({"Pod": {}, "Nodes": None, "NodeNames": self.names})

    def pod(self, kind: type[T]) -> T:
        """The pod, as much of it as `kind` has fields for; Unreadable where they do not fit."""
        return _read_object(_decoder(kind), self.sent_pod)

    def nodes(self, kind: type[T]) -> list[T] | None:
        """The nodes, with the fields of `kind`; None where only names were sent, Unreadable where the fields do not
        fit."""
        decoder = _decoder(kind)
        return None if self.sent_nodes is None else [_read_object(decoder, raw) for raw in self.sent_nodes]


class MetaPod(msgspec.Struct, frozen=True):
    uid: _Uid = msgspec.field(name="UID", default="")


class MetaVictims(msgspec.Struct, frozen=True, rename="pascal"):
    """The pods that would have to leave a node."""

    pods: Sequence[MetaPod] | None = None
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class Preemption(msgspec.Struct, frozen=True):
    """A preempt question: a pod, and the victims that would have to leave each node for it."""

    sent_pod: Raw
    victims: Mapping[str, MetaVictims]

    def pod(self, kind: type[T]) -> T:
        """The pod, as much of it as `kind` has fields for; Unreadable where they do not fit."""
        return _read_object(_decoder(kind), self.sent_pod)


class BindingAsked(msgspec.Struct, frozen=True):
    """A bind request: this pod, on that node."""

    name: str = msgspec.field(name="PodName")
    namespace: str = msgspec.field(name="PodNamespace")
    uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")


class _NodeName(msgspec.Struct, frozen=True, gc=False):
    name: _Name


class _Node(msgspec.Struct, frozen=True, gc=False):
    metadata: _NodeName


class _PodUid(msgspec.Struct, frozen=True):
    uid: _Uid = ""


class _Pod(msgspec.Struct, frozen=True):
    metadata: _PodUid = _PodUid()


class _NodeList(msgspec.Struct, frozen=True):
    items: list[_Node] | UnsetType | None = UNSET
    """Decoded only as far as names: the first node without a name ends it, and little is kept of the others."""


class _Arguments(msgspec.Struct, frozen=True, rename="pascal"):
    pod: Raw | UnsetType = UNSET
    nodes: _NodeList | UnsetType | None = UNSET
    node_names: Raw | UnsetType = UNSET

    @property
    def complete(self) -> bool:
        """Whether every field was spelt exactly, as every kube-scheduler does."""
        without = UNSET in (self.pod, self.nodes, self.node_names)
        return not without and not (self.nodes and self.nodes.items is UNSET)


class _FewArguments(msgspec.Struct, frozen=True, rename="pascal", gc=False):
    """The arguments of a body small enough to decode in one go without counting, as most are."""

    pod: Raw
    nodes: None
    node_names: list[_Name]


class _SentNodeList(msgspec.Struct, frozen=True):
    items: list[Raw]


class _SentNodes(msgspec.Struct, frozen=True, rename="pascal"):
    """The nodes of a question, as they were sent."""

    nodes: _SentNodeList


class _Victims(msgspec.Struct, frozen=True, rename="pascal"):
    pods: list[_Pod] | None = None
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class _PreemptionArguments(msgspec.Struct, frozen=True, rename="pascal"):
    pod: Raw | UnsetType = UNSET
    node_name_to_victims: dict[_Name, _Victims | None] | UnsetType | None = UNSET
    node_name_to_meta_victims: dict[_Name, MetaVictims | None] | UnsetType | None = UNSET


_arguments = msgspec.json.Decoder(_Arguments)
_few_arguments = msgspec.json.Decoder(_FewArguments)
_binding = msgspec.json.Decoder(BindingAsked)
_preemption_arguments = msgspec.json.Decoder(_PreemptionArguments)
_sent_nodes = msgspec.json.Decoder(_SentNodes)
_node_names: msgspec.json.Decoder[list[_Name] | None] = msgspec.json.Decoder(list[_Name] | None)
_anything: msgspec.json.Decoder[object] = msgspec.json.Decoder(object)
_fields = msgspec.json.Decoder(dict[str, Raw])
_encode = msgspec.json.Encoder().encode

_TOO_DEEP = "the body is nested more deeply than any Kubernetes object"
_NAMES = {name.lower(): name for name in ("Pod", "Nodes", "NodeNames", "items")}
_PREEMPTION_NAMES = {name.lower(): name for name in ("Pod", "NodeNameToVictims", "NodeNameToMetaVictims")}
_BINDING_NAMES = {name.lower(): name for name in ("PodName", "PodNamespace", "PodUID", "Node")}
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""A name that is allowed in a path of the API."""
_UID = re.compile(r"[-A-Za-z0-9_.]{1,128}")
_VICTIM_NAMES = {name.lower(): name for name in ("Pods", "NumPDBViolations")}


def read_question(body: bytes, most: int | None = None) -> Asked:
    """Decode the body of a filter or prioritize call; Unreadable where it is another body, TooMany for more than
    `most` nodes."""
    if len(body) <= _FEW and (few := _few(body, most)) is not None:
        return few
    spelt = body
    question_meter().add(body)
    given = _read(_arguments, body)
    if not given.complete:
        _check_elements("the body", body, _RESPELT_ELEMENTS)
        spelt = _respelt(body, _NAMES, {"Nodes": lambda raw: _respelt(raw, _NAMES)})
        given = _read(_arguments, spelt)
    pod = _pod(given.pod)
    names = None if given.node_names is UNSET else _names(given.node_names, most)
    if names:
        return Asked(body, pod, names, plain=_escapes_nothing_but(pod, body))
    if given.nodes:
        found = given.nodes.items or ()
        _check_number(len(found), most)
        sent = _read(_sent_nodes, spelt).nodes.items if found else ()
        return Asked(body, pod, [node.metadata.name for node in found], sent)
    if names is None:
        raise Unreadable("the body has neither NodeNames nor Nodes; kube-scheduler sends one of them")
    return Asked(body, pod, ())


def read_names(kept: bytes) -> Sequence[str]:
    """The names of `Asked.kept_names`."""
    return read_question(kept).names


def _few(body: bytes, most: int | None) -> Asked | None:
    """Decode a question about names, of moderate size; None where the body is another one."""
    try:
        given = _few_arguments.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not given.node_names:
        return None
    _check_number(len(given.node_names), most)
    pod = _pod(given.pod)
    return Asked(body, pod, given.node_names, plain=_escapes_nothing_but(pod, body))


def _names(sent: Raw, most: int | None) -> list[str] | None:
    if most is not None:
        # Names are one more than commas; no node has a comma in its name.
        _check_number(bytes(sent).count(b",") + 1, most)
    return _read(_node_names, sent)


def read_preemption(body: bytes) -> Preemption:
    """Decode the body of a preempt call; Unreadable where it is another body, TooMany where no cluster has so many
    victims."""
    preemption_meter().add(body)
    given = _read(_preemption_arguments, body)
    if UNSET in (given.pod, given.node_name_to_victims, given.node_name_to_meta_victims):
        _check_elements("the body", body, _RESPELT_ELEMENTS)
        nested = {name: _respelt_victims for name in _PREEMPTION_NAMES.values() if name != "Pod"}
        given = _read(_preemption_arguments, _respelt(body, _PREEMPTION_NAMES, nested))
    pod = _pod(given.pod)
    if given.node_name_to_meta_victims:
        meta = {node: one or MetaVictims() for node, one in given.node_name_to_meta_victims.items()}
        return Preemption(pod, meta)
    whole = given.node_name_to_victims or {}
    return Preemption(pod, {node: _meta(one or _Victims()) for node, one in whole.items()})


def read_binding(body: bytes) -> BindingAsked:
    """Decode the body of a bind call; Unreadable where it is another body."""
    if len(body) > _SMALL:
        raise TooMany(f"the body has {len(body)} bytes, but four names have no more than {_SMALL}")
    asked = _read(_binding, _respelt(body, _BINDING_NAMES))
    for field, value in (("PodName", asked.name), ("PodNamespace", asked.namespace), ("Node", asked.node)):
        if not _OBJECT_NAME.fullmatch(value):
            raise Unreadable(f"the body's {field} is not the name of an object")
    if not _UID.fullmatch(asked.uid):
        raise Unreadable("the body's PodUID is not a uid; kube-scheduler sends that of the pod")
    return asked


def _escapes_nothing_but(pod: Raw, body: bytes) -> bool:
    """Whether the body has no escapes outside its pod: then names need no decoding."""
    return b"\\" not in body or b"\\" not in body.replace(bytes(pod), b"", 1)


def _pod(given: Raw | UnsetType) -> Raw:
    if given is UNSET or bytes(memoryview(given)[:1]) != b"{":
        raise Unreadable("the body has no Pod; kube-scheduler sends the whole pod that it schedules")
    length = len(memoryview(given))
    if length > _LARGEST_POD:
        raise TooMany(
            f"the body's Pod has {length} bytes, more than a Kubernetes pod can have ({_LARGEST_POD})"
        )
    _check_elements("the body's Pod", given, _POD_ELEMENTS)
    return given


def _check_number(nodes: int, most: int | None) -> None:
    if most is not None and nodes > most:
        raise TooMany(
            f"the body asks about {nodes} nodes, but at most {most} are judged at once; ask about the nodes of "
            "this cluster"
        )


def _check_elements(what: str, sent: bytes | Raw, most: int) -> None:
    """TooMany where there may be more than `most` values. Commas inside strings are counted too, which is cheaper
    than telling them apart; the count is an upper bound."""
    if len(memoryview(sent)) <= _SMALL:
        return
    text = bytes(sent)
    found = text.count(b",") + text.count(b"[") + text.count(b"{")
    if found > most:
        raise TooMany(f"{what} holds {found} values, but at most {most} are read")


def _meta(victims: _Victims) -> MetaVictims:
    pods = [MetaPod(pod.metadata.uid) for pod in victims.pods or ()]
    return MetaVictims(pods, victims.violations)


_decoders: dict[type, msgspec.json.Decoder[Any]] = {}
"""Decoders by type; a process has few, and making one costs more than using it."""


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    if kind not in _decoders:
        _decoders[kind] = msgspec.json.Decoder(kind)
    return _decoders[kind]


def _read(decoder: msgspec.json.Decoder[T], body: bytes | Raw) -> T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise Unreadable(f"the body is not what kube-scheduler writes: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreadable(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise TooMany(_TOO_DEEP) from None


def _read_object(decoder: msgspec.json.Decoder[T], raw: Raw) -> T:
    """Decode an object of the API as Go does: null means absent."""
    try:
        return _read(decoder, raw)
    except Unreadable:
        # Rare and expensive: Kubernetes itself writes no null where these types have a field.
        if b"null" not in bytes(raw):
            raise
    try:
        said = _encode(without_nulls(_read(_anything, raw)))
    except RecursionError:
        raise TooMany(_TOO_DEEP) from None
    return _read(decoder, said)


def without_nulls(found: object) -> object:
    """A tree without nulls at any depth, as Go reads it."""
    match found:
        case dict():
            return {name: without_nulls(one) for name, one in found.items() if one is not None}
        case list():
            return [without_nulls(one) for one in found]
    return found


def _respelt(body: bytes | Raw, names: Mapping[str, str], nested: Mapping[str, Any] | None = None) -> bytes:
    """The object with these field names spelt exactly, and so too the objects nested below them."""
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
