"""Who holds blocks now, from what the kubelet wrote down, what the API says and what can be seen running. Pure.

The checkpoint keeps entries of pods that have ended until the next allocation, and podresources may know too little
just after a kubelet's start. So an entry that podresources does not list counts while its pod has a control group;
and where podresources is silent, unless the API knows better.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from colocate.apps.memory.objects import ApiPod
from colocate.kubelet.pod_holders import Holding, Holdings
from colocate.model.memory import PodUid


def who_holds(
    holdings: Holdings,
    pods: Sequence[ApiPod],
    resource: str,
    *,
    api_knows: bool,
    running: AbstractSet[PodUid],
) -> Mapping[PodUid, tuple[str, ...]]:
    """By pod. `api_knows`: the API's list was read at least once; `running`: pods with a control group."""
    by_uid = {pod.uid: pod for pod in pods}
    # A newer pod of the same name that asks for no block is not the one that podresources means.
    asking = [pod for pod in pods if pod.asks_for(resource)]
    by_key = {pod.key: pod for pod in sorted(asking, key=lambda pod: not pod.is_ending)}
    held: dict[PodUid, tuple[str, ...]] = {}
    for each in holdings.pods:
        uid = each.uid or (by_key[each.key].uid if each.key in by_key else "")
        if uid and _counts(each, by_uid.get(uid), holdings.listed, api_knows, uid in running):
            held[uid] = tuple(sorted({*held.get(uid, ()), *each.ids}))
    return held


def _counts(each: Holding, pod: ApiPod | None, listed: bool, api_knows: bool, runs: bool) -> bool:
    if each.key:
        return True
    if pod is not None and pod.is_finished:
        return False
    return runs or (not listed and (pod is not None or not api_knows))
