"""The names of the pods in a checkpoint, which has only uids.

The API knows names and uids, but of a static pod it has only the mirror, whose annotation names the kubelet's uid and
can be forged. podresources knows no uids: a pod there is the one whose containers hold the same devices
(`model.holdings`). If two pods hold the same devices, neither gets the name, unless the API tells them apart.
"""

from collections.abc import Mapping, Sequence

from colocate.model import holdings
from colocate.model.checkpoint import Checkpoint
from colocate.model.records import KnownPod, ListedPod


def names(
    checkpoint: Checkpoint, listing: Sequence[ListedPod] | None, pods: Sequence[KnownPod] | None
) -> Mapping[str, str]:
    """`namespace/name` by uid, for the pods of the checkpoint whose name can be found."""
    alone = {key: uids[0] for key, uids in claimants(checkpoint, listing, pods).items() if len(uids) == 1}
    return {**{uid: key for key, uid in alone.items()}, **_by_uid(pods)}


def claimants(
    checkpoint: Checkpoint, listing: Sequence[ListedPod] | None, pods: Sequence[KnownPod] | None
) -> Mapping[str, Sequence[str]]:
    """By the name of a pod that podresources lists and the API does not: the uids that it may have."""
    named = _by_uid(pods)
    taken = frozenset(named.values())
    return holdings.claimants(
        (pod for pod in listing or () if pod.key not in taken),
        (entry for entry in checkpoint.entries or () if entry.pod_uid not in named),
    )


def _by_uid(pods: Sequence[KnownPod] | None) -> Mapping[str, str]:
    return {pod.uid: pod.key for pod in pods or () if not pod.mirrors}
