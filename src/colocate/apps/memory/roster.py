"""Which pod of the API is which pod of the kubelet. Pure; nothing that a tenant writes decides it.

A pod is known by the uid that the API server gave it. The kubelet runs a static pod under another uid than its mirror
in the API has: an annotation of the mirror says which. Whoever may create pods can write that annotation, and owners,
too. So a mirror stands for a pod only where the kubelet's own records give the uid to this namespace and name
(`Holdings.proven`) and no pod in the API has the uid for its own. Every other mirror stands for nobody: the kubelet
runs no pod under a mirror's own uid, and what a static pod uses is counted by its control group.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

import msgspec

from colocate.apps.memory.objects import ApiPod, identity
from colocate.model.figures import some
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
