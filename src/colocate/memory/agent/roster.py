"""Which pod of the API is which pod of the kubelet, and which holds blocks. Pure; no tenant's word decides it.

A pod is known by the uid that the API server gave it. The kubelet runs a static pod under another uid than its mirror
in the API has: an annotation of the mirror says which. Whoever may create pods can write that annotation, and owners,
too. So a mirror stands for a pod only where the kubelet's own records give the uid to this namespace and name
(`Holdings.proven`) and no pod in the API has the uid for its own. Every other mirror stands for nobody: the kubelet
runs no pod under a mirror's own uid, and what a static pod uses is counted by its control group.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

import msgspec

from colocate.memory.agent.objects import ApiPod, identity
from colocate.model.figures import some
from colocate.model.holdings import Holding, Holdings
from colocate.model.memory import PodIdentity, PodUid
from colocate.model.path_word import is_path_word


class IdentityCollision(msgspec.Struct, frozen=True):
    """Pods that claim by annotation to be a pod which somebody else is, or claims to be."""

    uid: PodUid
    claimants: tuple[ApiPod, ...]
    owner: str
    """namespace/name of the pod that it is; empty where nobody can say."""

    def __str__(self) -> str:
        names = some([pod.key for pod in self.claimants])
        whose = f"which is {self.owner}" if self.owner else "and nothing proves which one it is"
        return f"{names} claim{'s' * (len(self.claimants) == 1)} to be pod {self.uid}, {whose}"


class Roster(msgspec.Struct, frozen=True):
    """The pods of a node by the uid under which the kubelet runs them."""

    pods: Mapping[PodUid, ApiPod]
    static: frozenset[PodUid] = frozenset()
    """Those of them that are static, and in the API by their mirror."""
    collisions: tuple[IdentityCollision, ...] = ()

    def identities(self, resource: str) -> tuple[PodIdentity, ...]:
        """Who they are, of those that have not ended."""
        return tuple(
            identity(pod, resource, uid, static=uid in self.static)
            for uid, pod in self.pods.items()
            if not pod.is_finished
        )


def roster(pods: Iterable[ApiPod], proven: Mapping[PodUid, str], run: AbstractSet[PodUid]) -> Roster:
    """`proven` are names by uid, by the kubelet's own records; `run` are uids that it runs or knows to hold blocks.

    A pod that the kubelet runs under the API's own uid is no mirror, whatever it says.
    """
    usable = [pod for pod in pods if is_path_word(pod.uid)]
    known = {pod.uid: pod for pod in usable if not pod.is_mirror or pod.uid in run}
    claims: dict[PodUid, list[ApiPod]] = {}
    for pod in usable:
        if pod.claimed_uid and pod.uid not in known:
            claims.setdefault(pod.claimed_uid, []).append(pod)
    static: dict[PodUid, ApiPod] = {}
    collisions = []
    for uid, claimants in claims.items():
        owner = known[uid].key if uid in known else proven.get(uid, "")
        # Two pods of one name are one that was replaced: the API has but one of them at a time.
        own = [pod for pod in claimants if pod.key == owner and uid not in known]
        if own:
            static[uid] = own[-1]
        others = tuple(pod for pod in claimants if pod not in own)
        if others and (owner or len(others) > 1):
            collisions.append(IdentityCollision(uid, others, owner))
    return Roster({**known, **static}, frozenset(static), tuple(collisions))


def who_holds(
    holdings: Holdings,
    pods: Roster,
    resource: str,
    *,
    api_knows: bool,
    running: AbstractSet[PodUid],
) -> Mapping[PodUid, tuple[str, ...]]:
    """Which pod holds which blocks now. `api_knows`: the API's list was read at least once; `running`: pods with a
    control group.

    The checkpoint keeps entries of pods that have ended until the next allocation, and podresources may know too
    little just after a kubelet's start. So an entry that podresources does not list counts while its pod has a
    control group; and where podresources is silent, unless the API knows better.
    """
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
