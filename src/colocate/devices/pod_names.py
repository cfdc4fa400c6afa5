"""The names of the pods in a checkpoint, which knows uids alone.

The API knows both. podresources knows no uid: there a pod is the one whose containers hold the same devices.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from colocate.model.checkpoint import Checkpoint
from colocate.model.records import KnownPod, ListedPod


def names(
    checkpoint: Checkpoint, listing: Sequence[ListedPod] | None, pods: Sequence[KnownPod] | None
) -> Mapping[str, str]:
    """`namespace/name` by uid, of as many of the checkpoint's pods as can be told."""
    return {**_by_devices(checkpoint, listing or ()), **_by_uid(pods or ())}


def _by_uid(pods: Iterable[KnownPod]) -> Mapping[str, str]:
    return {pod.uid: pod.key for pod in pods}


def _by_devices(checkpoint: Checkpoint, listing: Iterable[ListedPod]) -> Mapping[str, str]:
    holders = {
        (container, resource, id): pod.key
        for pod in listing
        for container, resources in pod.containers.items()
        for resource, ids in resources.items()
        for id in ids
    }
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for entry in checkpoint.entries or ():
        for id in entry.ids:
            if key := holders.get((entry.container, entry.resource, id)):
                votes[entry.pod_uid][key] += 1
    return {uid: most.most_common(1)[0][0] for uid, most in votes.items()}
