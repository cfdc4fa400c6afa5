"""The names of the pods in a checkpoint, which knows uids alone.

The API knows both, but of static pods: their mirrors there only say which uid the kubelet runs them under, as anybody
can. podresources knows no uid: there a pod is the one whose containers hold the same devices (`model.holdings`). A
name is one pod's alone: where two hold the same devices, neither is given it, unless the API tells them apart.
"""

from collections.abc import Mapping, Sequence

from colocate.model import holdings
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
    """By the name of a pod that podresources lists and the API does not: the uids that may be its."""
    named = _by_uid(pods)
    taken = frozenset(named.values())
    return holdings.claimants(
        (pod for pod in listing or () if pod.key not in taken),
        (entry for entry in checkpoint.entries or () if entry.pod_uid not in named),
    )


def _by_uid(pods: Sequence[KnownPod] | None) -> Mapping[str, str]:
    return {pod.uid: pod.key for pod in pods or () if not pod.mirrors}
