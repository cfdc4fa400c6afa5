"""A recording of a cluster: which nodes there were, which pods came and went where, what each used. Data only.

It is made from snapshots, taken one after the other, and read by a replay. Uses are kept as they were seen, in arrays
of four-byte numbers; names can be replaced by keyed hashes. A recording is bounded, and so is
what is read from a file before it is understood.
"""

import hashlib
import hmac
import zlib
from array import array
from collections.abc import Callable, Mapping
from typing import Annotated

import msgspec

from colocate.errors import UserError
from colocate.load.settings import LoadSettings
from colocate.load.snapshot import LoadSnapshot
from colocate.model.load import Access, NodeFacts, NodeLoad, PodFacts, PodUsage, Taint

RECORDING_VERSION = 1
_MAGIC = b"colocate-recording\n"
MOST_RECORDED = 1 << 30
"""Bytes: as large as a recorder says it may become, and a quarter more for what it does not count."""
_MOST_DECODED = MOST_RECORDED * 5 // 4
_AT_ONCE = 1 << 20
_MOST_SNAPSHOTS = 1_300_000
"""One a second for a fortnight."""
_MOST_NODES = 100_000
_MOST_PODS = 4_000_000
_MOST_PARTS = 10_000_000
"""Containers and taints: a byte of a file may become a hundred of these as objects."""
_LATEST = 253_402_300_799.0
"""No calendar goes beyond the year 9999."""
_MISSING = -1.0
_MEBI = 1 << 20
Hide = Callable[[str], str]


class RecordedPod(msgspec.Struct, frozen=True):
    """One pod on one node, and what it was measured to use."""

    facts: PodFacts
    node: str
    bound_at: float
    first: int
    """The number of the first snapshot that it was in."""
    last: int
    cpu: bytes
    """Millicores by snapshot, from `first` to `last`; -1 where it was not measured."""
    memory: bytes
    """MiB by snapshot, from `first` to `last`; -1 where it was not measured."""


class RecordedNode(msgspec.Struct, frozen=True):
    """One node, and what was measured of it in percent of its capacity, from the first snapshot to the last."""

    facts: NodeFacts
    cpu: bytes
    memory: bytes


class LoadRecording(msgspec.Struct, frozen=True):
    times: tuple[float, ...]
    """When each snapshot was taken."""
    settings: LoadSettings
    nodes: tuple[RecordedNode, ...]
    pods: tuple[RecordedPod, ...]
    version: int = RECORDING_VERSION


class _RecordingFile(msgspec.Struct, frozen=True):
    """A recording as it is read: nodes and pods beyond the bounds stay undecoded."""

    times: Annotated[tuple[float, ...], msgspec.Meta(max_length=_MOST_SNAPSHOTS)]
    settings: LoadSettings
    nodes: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=_MOST_NODES)]
    pods: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=_MOST_PODS)]
    version: int = RECORDING_VERSION


class _PodTrack:
    def __init__(self, facts: PodFacts, node: str, bound_at: float, first: int) -> None:
        self.facts, self.node, self.bound_at, self.first = facts, node, bound_at, first
        self.cpu, self.memory = array("f"), array("f")


class LoadRecorder:
    """Adds one snapshot after the other."""

    def __init__(self, hide: Hide | None = None) -> None:
        self._hide = hide or (lambda name: name)
        self._times: list[float] = []
        self._nodes: dict[str, NodeFacts] = {}
        self._loads: dict[str, tuple[array[float], array[float]]] = {}
        self._running: dict[str, _PodTrack] = {}
        self._ended: list[RecordedPod] = []
        self._settings = LoadSettings()

    def __len__(self) -> int:
        """Bytes before compression, about."""
        samples = sum(8 * len(cpu) for cpu, _ in self._loads.values())
        samples += sum(8 * len(track.cpu) for track in self._running.values())
        samples += sum(2 * len(pod.cpu) for pod in self._ended)
        return samples + 300 * (len(self._running) + len(self._ended) + len(self._nodes))

    @property
    def snapshots(self) -> int:
        return len(self._times)

    def add(self, taken: LoadSnapshot) -> bool:
        """False where it is no younger than the last one."""
        if self._times and taken.taken_at <= self._times[-1]:
            return False
        number = len(self._times)
        self._times.append(taken.taken_at)
        self._settings = taken.settings
        self._add_nodes(taken.nodes, taken.loads, number)
        here = {bound.pod.uid: bound for bound in taken.pods}
        for uid in [uid for uid, track in self._running.items() if _gone(track, here.get(uid), self._hide)]:
            self._end(uid, number)
        for uid, bound in here.items():
            track = self._running.get(uid)
            if track is None:
                facts = _hidden(bound.pod, self._hide)
                track = _PodTrack(facts, self._hide(bound.node), bound.bound_at, number)
                self._running[uid] = track
            _note(track, taken.usages.get(uid))
        return True

    def recording(self) -> LoadRecording:
        """All of it so far; pods that still run end with the last snapshot."""
        last = len(self._times)
        running = tuple(_recorded(track, last) for track in self._running.values())
        nodes = tuple(
            RecordedNode(facts, self._loads[name][0].tobytes(), self._loads[name][1].tobytes())
            for name, facts in self._nodes.items()
        )
        return LoadRecording(tuple(self._times), self._settings, nodes, (*self._ended, *running))

    def _add_nodes(self, nodes: tuple[NodeFacts, ...], loads: Mapping[str, NodeLoad], number: int) -> None:
        for facts in nodes:
            name = self._hide(facts.name)
            self._nodes[name] = msgspec.structs.replace(
                facts, name=name, access=_hidden_access(facts.access, self._hide)
            )
            if name not in self._loads:
                empty = [_MISSING] * number
                self._loads[name] = (array("f", empty), array("f", empty))
            load = loads.get(facts.name, NodeLoad())
            self._loads[name][0].append(_MISSING if load.cpu is None else load.cpu.percent)
            self._loads[name][1].append(_MISSING if load.memory is None else load.memory.percent)
        for cpu, memory in self._loads.values():
            if len(cpu) <= number:
                cpu.append(_MISSING)
                memory.append(_MISSING)

    def _end(self, uid: str, number: int) -> None:
        self._ended.append(_recorded(self._running.pop(uid), number))


def _gone(track: _PodTrack, bound: object, hide: Hide) -> bool:
    return bound is None or hide(getattr(bound, "node", "")) != track.node


def _note(track: _PodTrack, usage: PodUsage | None) -> None:
    track.cpu.append(_MISSING if usage is None else float(usage.amount.cpu))
    track.memory.append(_MISSING if usage is None else usage.amount.memory / _MEBI)


def _recorded(track: _PodTrack, last: int) -> RecordedPod:
    return RecordedPod(
        track.facts,
        track.node,
        track.bound_at,
        track.first,
        last,
        track.cpu.tobytes(),
        track.memory.tobytes(),
    )


def hashing(key: bytes) -> Hide:
    """Replaces names by keyed hashes: equal names have equal hashes."""
    known: dict[str, str] = {}

    def hide(name: str) -> str:
        if not name:
            return name
        found = known.get(name)
        if found is None:
            found = known[name] = hmac.new(key, name.encode(errors="replace"), hashlib.sha256).hexdigest()[
                :16
            ]
        return found

    return hide


def _hidden(pod: PodFacts, hide: Hide) -> PodFacts:
    return msgspec.structs.replace(pod, uid=hide(pod.uid), key=hide(pod.key), owner=hide(pod.owner))


def _hidden_access(access: Access, hide: Hide) -> Access:
    taints = tuple(Taint(hide(taint.key), taint.effect, hide(taint.value)) for taint in access.taints)
    return Access(access.cordoned, taints)


def encode_recording(recording: LoadRecording) -> bytes:
    return _MAGIC + zlib.compress(msgspec.msgpack.encode(recording), 6)


def decode_recording(data: bytes, source: str) -> LoadRecording:
    """`source` is what an error calls it."""
    if not data.startswith(_MAGIC):
        raise UserError(f"{source} is not a recording of 'colocate scheduler record'; make one with it")
    try:
        found = msgspec.msgpack.decode(
            _unpacked(memoryview(data)[len(_MAGIC) :], source), type=_RecordingFile
        )
    except (zlib.error, msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UserError(f"{source} is a broken recording: {error}; record again") from None
    if found.version != RECORDING_VERSION:
        raise UserError(
            f"{source} is a recording of version {found.version}, but this Colocate reads {RECORDING_VERSION}; "
            f"record again"
        )
    try:
        recording = LoadRecording(found.times, found.settings, *_parts(found, source))
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UserError(f"{source} is a broken recording: {error}; record again") from None
    _check(recording, source)
    return recording


def _unpacked(packed: memoryview, source: str) -> bytearray:
    """In pieces: the whole text would be in memory twice."""
    reader = zlib.decompressobj()
    text = bytearray()
    rest: bytes | memoryview = packed
    while rest and not reader.eof:
        text += reader.decompress(rest, _AT_ONCE)
        rest = reader.unconsumed_tail
        if len(text) > _MOST_DECODED:
            raise UserError(f"{source} holds more than {_MOST_DECODED >> 20} MiB; record for a shorter time")
    return text


def _parts(file: _RecordingFile, source: str) -> tuple[tuple[RecordedNode, ...], tuple[RecordedPod, ...]]:
    parts = 0
    nodes, pods = [], []
    for raw in file.nodes:
        nodes.append(_read_node(raw))
        parts = _counted(parts + len(nodes[-1].facts.access.taints), source)
    for raw in file.pods:
        pods.append(_read_pod(raw))
        facts = pods[-1].facts
        for shape in (facts.shape, facts.by_class or facts.shape):
            parts = _counted(parts + len(shape.containers) + len(shape.init), source)
    return tuple(nodes), tuple(pods)


_read_node = msgspec.msgpack.Decoder(RecordedNode).decode
_read_pod = msgspec.msgpack.Decoder(RecordedPod).decode


def _counted(parts: int, source: str) -> int:
    if parts > _MOST_PARTS:
        raise UserError(
            f"{source} has more than {_MOST_PARTS} containers and taints; record for a shorter time"
        )
    return parts


def _check(found: LoadRecording, source: str) -> None:
    snapshots = len(found.times)
    whole = all(len(node.cpu) == len(node.memory) == 4 * snapshots for node in found.nodes)
    within = all(
        0 <= pod.first < pod.last <= snapshots
        and len(pod.cpu) == len(pod.memory) == 4 * (pod.last - pod.first)
        for pod in found.pods
    )
    at_times = all(0 <= time <= _LATEST for time in (*found.times, *(pod.bound_at for pod in found.pods)))
    if not whole or not within or not at_times or list(found.times) != sorted(set(found.times)):
        raise UserError(f"{source} is a broken recording: its parts do not belong together; record again")
