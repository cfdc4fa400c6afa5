"""The names of the pods in a checkpoint, which knows uids alone.

The API knows both, but of static pods: their mirrors there only say which uid the kubelet runs them under, as anybody
can. podresources knows no uid: there a pod is the one whose containers hold the same devices. A name is one pod's
alone: where two hold the same devices, neither is given it, unless the API tells them apart.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from colocate.model.checkpoint import Checkpoint
from colocate.model.records import KnownPod, ListedPod


def names(
    checkpoint: Checkpoint, listing: Sequence[ListedPod] | None, pods: Sequence[KnownPod] | None
) -> Mapping[str, str]:
    """`namespace/name` by uid, of as many of the checkpoint's pods as can be told."""
    alone = {key: uids[0] for key, uids in claimants(checkpoint, listing, pods).items() if len(uids) == 1}
    return {**{uid: key for key, uid in alone.items()}, **_by_uid(pods)}


def claimants(
    checkpoint: Checkpoint, listing: Sequence[ListedPod] | None, pods: Sequence[KnownPod] | None
) -> Mapping[str, Sequence[str]]:
    """By the name of a pod that podresources lists and the API does not: the uids that may be its.

    They are those that hold most of its devices: the pod itself holds them all, another as many at best.
    """
    named = _by_uid(pods)
    taken = frozenset(named.values())
    holders: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for pod in listing or ():
        if pod.key not in taken:
            for held in _held(pod):
                holders[held].append(pod.key)
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for entry in checkpoint.entries or ():
        if entry.pod_uid not in named:
            for id in entry.ids:
                votes[entry.pod_uid].update(holders.get((entry.container, entry.resource, id), ()))
    claims: dict[str, Counter[str]] = defaultdict(Counter)
    for uid, counts in votes.items():
        for key in _most(counts):
            claims[key][uid] = counts[key]
    return {key: _most(counts) for key, counts in claims.items()}


def _held(pod: ListedPod) -> Iterable[tuple[str, str, str]]:
    for container, resources in pod.containers.items():
        for resource, ids in resources.items():
            for id in ids:
                yield container, resource, id


def _most(counts: Counter[str]) -> Sequence[str]:
    most = max(counts.values(), default=0)
    return [name for name, count in counts.items() if count == most]


def _by_uid(pods: Sequence[KnownPod] | None) -> Mapping[str, str]:
    return {pod.uid: pod.key for pod in pods or () if not pod.mirrors}
