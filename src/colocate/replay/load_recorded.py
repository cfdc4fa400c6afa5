"""Makes a workload from a recording of a cluster, to compare policies on it.

Pods that were there at the beginning, and those of daemon sets, stay on their nodes; all others are placed again,
among nodes with the same taints as their own. Unmeasured pods share what is left of their node's use, in proportion
to their requests. What a node uses besides its pods stays with the node.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from colocate.errors import UserError
from colocate.load import EstimateSettings, LoadRecording, PackingSettings, stated_demand
from colocate.model.load import NodeFacts
from colocate.replay.load_trace import Floats
from colocate.replay.load_workload import MIB, ReplayPod, ReplayWorkload

_LEAST_MINUTES = 30
_MOST_MINUTES = 60 * 24 * 60
_MOST_CELLS = 1 << 27
"""The most values: minutes of all pods, and three times the minutes of all nodes. Each has eight bytes, and a run
copies them a few times."""
_GREATEST = 1e12
"""Millicores or MiB; more than any node has."""


class _Track(msgspec.Struct, frozen=True, eq=False):
    number: int
    node: int
    begin: int
    end: int
    use: Floats
    known: bool
    request: Floats
    stated: Floats


def recorded_workload(recording: LoadRecording, source: str, warm_up: int = 0) -> ReplayWorkload:
    """The workload, minute by minute, from the first snapshot to the last; `warm_up` minutes are not counted."""
    times = np.array(recording.times)
    minutes = int((times[-1] - times[0]) // 60) if len(times) > 1 else 0
    if minutes < _LEAST_MINUTES or not recording.nodes:
        raise UserError(f"{source} lasts {minutes} min; a replay needs {_LEAST_MINUTES} min at least")
    if minutes > _MOST_MINUTES:
        raise UserError(f"{source} lasts longer than {_MOST_MINUTES // 1440} days; record for a shorter time")
    _check_size(recording, times, minutes, source)
    at = times[0] + 60 * np.arange(minutes)
    seen = np.clip(np.searchsorted(times, at, side="right") - 1, 0, len(times) - 1)
    facts = [_open(node.facts) for node in recording.nodes]
    numbers = {node.name: number for number, node in enumerate(facts)}
    size = np.array([[node.room.cpu, node.room.memory / MIB] for node in facts]).T
    if not (size > 0).all():
        raise UserError(f"{source} has a node without CPU or memory; record again once it is ready")
    base = _node_use(recording, facts, seen)
    tracks = _tracks(recording, numbers, times, minutes)
    if not all(_is_sound(use) for use in (size, base, *(track.use for track in tracks))):
        raise UserError(f"{source} is a broken recording: it has impossible values; record again")
    tracked = _pods(recording, tracks, base, float(times[0]))
    pools = {node.access.pool: place for place, node in enumerate(facts)}
    among = [pools[node.access.pool] for node in facts]
    pods = [msgspec.structs.replace(pod, among=among[track.node]) for pod, track in tracked]
    pods.sort(key=lambda pod: pod.at)
    # A pod without an owner has no replicas.
    names = [pod.facts.owner or pod.facts.uid for pod in pods]
    owners = {owner: place for place, owner in enumerate(dict.fromkeys(names))}
    pods = [msgspec.structs.replace(pod, owner=owners[name]) for pod, name in zip(pods, names, strict=True)]
    return ReplayWorkload(
        facts,
        size,
        pods,
        max(1, len(owners)),
        minutes,
        min(warm_up, minutes - 5),
        base,
        among,
        float(times[0]),
        recording.settings,
    )


def _check_size(recording: LoadRecording, times: Floats, minutes: int, source: str) -> None:
    """UserError where the arrays would be too large: two snapshots may be weeks apart, so a small file can become
    large."""
    ends = np.append(times, times[-1])
    of_pods = sum(ends[pod.last] - times[pod.first] + 60 for pod in recording.pods) / 60
    if of_pods + 3 * minutes * len(recording.nodes) > _MOST_CELLS:
        raise UserError(
            f"{source} is too large to be replayed: {len(recording.nodes)} nodes and {len(recording.pods)} pods over "
            f"{minutes} min; record for a shorter time"
        )


def _is_sound(use: Floats) -> bool:
    # NaN compares as False.
    return bool(use.size == 0 or (use.min() >= 0 and use.max() <= _GREATEST))


def _open(facts: NodeFacts) -> NodeFacts:
    return msgspec.structs.replace(facts, created=None)


def _node_use(recording: LoadRecording, facts: list[NodeFacts], seen: NDArray[np.intp]) -> Floats:
    """The use of nodes in millicores and MiB; 0 where it was not measured."""
    used = np.zeros((2, len(facts), len(seen)), np.float32)
    for number, node in enumerate(recording.nodes):
        capacity = facts[number].capacity
        for resource, (series, whole) in enumerate(
            ((node.cpu, capacity.cpu), (node.memory, capacity.memory / MIB))
        ):
            percents = np.frombuffer(series, np.float32)[seen]
            with np.errstate(over="ignore"):
                used[resource, number] = np.where(percents < 0, 0, percents) * whole / 100
    return used


def _tracks(recording: LoadRecording, numbers: dict[str, int], times: Floats, minutes: int) -> list[_Track]:
    tracks = []
    for number, pod in enumerate(recording.pods):
        if pod.node not in numbers:
            continue
        begin = int(max(0, (max(pod.bound_at, times[0]) - times[0]) // 60 + 1)) if pod.first else 0
        last = len(times) - 1 if pod.last >= len(times) else pod.last
        end = minutes if pod.last >= len(times) else int((times[last] - times[0]) // 60)
        end = min(minutes, max(end, begin + 1))
        if begin >= minutes:
            continue
        offsets = np.clip(
            np.searchsorted(times, times[0] + 60 * np.arange(begin, end), side="right") - 1 - pod.first,
            0,
            pod.last - pod.first - 1,
        )
        use = np.stack([np.frombuffer(series, np.float32)[offsets] for series in (pod.cpu, pod.memory)])
        known = bool((use >= 0).any())
        demand = stated_demand(pod.facts, EstimateSettings(), PackingSettings())
        request = np.array([demand.request.cpu, demand.request.memory / MIB])
        stated = np.array([demand.estimate.cpu, demand.estimate.memory / MIB])
        tracks.append(_Track(number, numbers[pod.node], begin, end, _filled(use), known, request, stated))
    return tracks


def _filled(use: Floats) -> Floats:
    """Fill gaps with the value before, or the first value."""
    filled = use.copy()
    for row in filled:
        measured = np.flatnonzero(row >= 0)
        if not len(measured):
            row[:] = 0
            continue
        places = np.maximum.accumulate(np.where(row >= 0, np.arange(len(row)), measured[0]))
        row[:] = row[places]
    return filled


def _pods(
    recording: LoadRecording, tracks: list[_Track], base: Floats, start: float
) -> list[tuple[ReplayPod, _Track]]:
    """The pods. Their use is subtracted from `base`, which keeps what nodes use besides."""
    stated = np.zeros_like(base)
    for track in tracks:
        if track.known:
            base[:, track.node, track.begin : track.end] -= track.use
        else:
            stated[:, track.node, track.begin : track.end] += track.stated[:, None]
    np.maximum(base, 0, out=base)
    share = np.divide(base, stated, out=np.zeros_like(base), where=stated > 0)
    found = []
    for track in tracks:
        pod, use = recording.pods[track.number], track.use
        if not track.known:
            use = share[:, track.node, track.begin : track.end] * track.stated[:, None].astype(np.float32)
            base[:, track.node, track.begin : track.end] -= use
        fixed = pod.first == 0 or pod.facts.daemon
        at = max(0.0, pod.bound_at - start) if pod.first else 0.0
        found.append(
            (
                ReplayPod(
                    pod.facts,
                    0,
                    at,
                    track.begin,
                    track.end,
                    use,
                    track.request,
                    track.node if fixed else None,
                ),
                track,
            )
        )
    np.maximum(base, 0, out=base)
    return found
