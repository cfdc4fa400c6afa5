"""Who holds blocks now, from what the kubelet wrote down, what the API says and what can be seen running. Pure.

The checkpoint keeps entries of pods that have ended until the next allocation, and podresources may know too little
just after a kubelet's start. So an entry that podresources does not list counts while its pod has a control group;
and where podresources is silent, unless the API knows better.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from colocate.apps.memory.objects import ApiPod
from colocate.apps.memory.roster import Roster
from colocate.model.holdings import Holding, Holdings
from colocate.model.memory import PodUid


def who_holds(
    holdings: Holdings,
    pods: Roster,
    resource: str,
    *,
    api_knows: bool,
    running: AbstractSet[PodUid],
) -> Mapping[PodUid, tuple[str, ...]]:
    """By pod. `api_knows`: the API's list was read at least once; `running`: pods with a control group."""
    # A newer pod of the same name that asks for no block is not the one that podresources means.
    asking = [(uid, pod) for uid, pod in pods.pods.items() if pod.asks_for(resource)]
    by_key = {pod.key: uid for uid, pod in sorted(asking, key=lambda each: not each[1].is_ending)}
    held: dict[PodUid, tuple[str, ...]] = {}
    for each in holdings.pods:
        uid = each.uid or by_key.get(each.key, "")
        if uid and _counts(each, pods.pods.get(uid), holdings.listed, api_knows, uid in running):
            held[uid] = tuple(sorted({*held.get(uid, ()), *each.ids}))
    return held


def held_by_unknown(holdings: Holdings, held: Mapping[PodUid, tuple[str, ...]]) -> tuple[str, ...]:
    """Ids that somebody holds of whom no uid is known: they are not free, and nothing can be done to their pod."""
    attributed = {id for ids in held.values() for id in ids}
    return tuple(
        sorted({id for each in holdings.pods if not each.uid for id in each.ids if id not in attributed})
    )


def _counts(each: Holding, pod: ApiPod | None, listed: bool, api_knows: bool, runs: bool) -> bool:
    if each.key:
        return True
    if pod is not None and pod.is_finished:
        return False
    return runs or (not listed and (pod is not None or not api_knows))
