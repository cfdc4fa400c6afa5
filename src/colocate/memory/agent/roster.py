"""Matches pods of the API with pods of the kubelet, and with the blocks that they hold. Pure. Trusts no tenant.

A pod is known by the uid that the API server gave it. The kubelet runs a static pod under another uid than that of
its mirror in the API: an annotation of the mirror says which. Any tenant who may create pods can write that
annotation. So a mirror stands for a pod only where the kubelet's own records have the uid with this namespace and
name (`Holdings.proven`), and no pod in the API has that uid itself. Every other mirror is ignored: the kubelet runs
no pod under a mirror's own uid, and a static pod's use is counted by its control group.
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
    """Pods that claim by annotation to be a pod that another pod is, or also claims to be."""

    uid: PodUid
    claimants: tuple[ApiPod, ...]
    owner: str
    """namespace/name of the real pod; empty where unknown."""

    def __str__(self) -> str:
        names = some([pod.key for pod in self.claimants])
        whose = f"which is {self.owner}" if self.owner else "and nothing proves which one it is"
        return f"{names} claim{'s' * (len(self.claimants) == 1)} to be pod {self.uid}, {whose}"


class Roster(msgspec.Struct, frozen=True):
    """The pods of a node by the uid under which the kubelet runs them."""

    pods: Mapping[PodUid, ApiPod]
    static: frozenset[PodUid] = frozenset()
    """The static ones, which the API shows by their mirror."""
    collisions: tuple[IdentityCollision, ...] = ()

    def identities(self, resource: str) -> tuple[PodIdentity, ...]:
        """The identities of pods that have not ended."""
        return tuple(
            identity(pod, resource, uid, static=uid in self.static)
            for uid, pod in self.pods.items()
            if not pod.is_finished
        )


def roster(pods: Iterable[ApiPod], proven: Mapping[PodUid, str], run: AbstractSet[PodUid]) -> Roster:
    """The roster of `pods`. `proven` are names by uid from the kubelet's records; `run` are uids that the kubelet
    runs or knows to hold blocks.

    A pod that the kubelet runs under the API's uid is no mirror, even if it claims to be.
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
        # Of two pods with one name, the later has replaced the earlier.
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

    The checkpoint keeps entries of ended pods until the next allocation, and podresources may be incomplete just
    after a kubelet's start. So an entry that podresources does not list counts while its pod has a control group;
    where podresources does not answer, it counts unless the API shows that the pod is gone.
    """
    # podresources cannot mean a newer pod of the same name that requests no block.
    asking = [(uid, pod) for uid, pod in pods.pods.items() if pod.asks_for(resource)]
    by_key = {pod.key: uid for uid, pod in sorted(asking, key=lambda each: not each[1].is_ending)}
    held: dict[PodUid, tuple[str, ...]] = {}
    for each in holdings.pods:
        uid = each.uid or by_key.get(each.key, "")
        if uid and _counts(each, pods.pods.get(uid), holdings.listed, api_knows, uid in running):
            held[uid] = tuple(sorted({*held.get(uid, ()), *each.ids}))
    return held


def held_by_unknown(holdings: Holdings, held: Mapping[PodUid, tuple[str, ...]]) -> tuple[str, ...]:
    """Ids that are held by pods of unknown uid: they are not free, and their pods cannot be touched."""
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
