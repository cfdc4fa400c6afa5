"""Which pod holds which ids of a resource. podresources knows names, the checkpoint uids: both are joined here.

Nothing is judged: entries of the checkpoint that podresources does not list may be of pods that have ended, or of a
kubelet that has just started. Who asks knows more of pods.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from colocate.clock import Clock
from colocate.errors import ColocateError, Unavailable
from colocate.kubelet import checkpoint
from colocate.kubelet.paths import KubeletPaths
from colocate.kubelet.podresources import listed_pods
from colocate.model.checkpoint import Entry
from colocate.model.path_word import is_path_word
from colocate.model.records import ListedPod


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """What one pod holds of the resource."""

    uid: str = ""
    """Empty where the checkpoint does not know it."""
    key: str = ""
    """namespace/name; empty where podresources does not list it."""
    ids: tuple[str, ...]

    @property
    def proven(self) -> Mapping[str, str]:
        """The name by the uid, where the kubelet's two records agree on it."""
        return {self.uid: self.key} if self.uid and self.key else {}


class Holdings(msgspec.Struct, frozen=True):
    """All that is known of who holds what."""

    pods: tuple[Holding, ...] = ()
    listed: bool = True
    """Whether podresources answered: the kubelet's own word."""
    silent: tuple[str, ...] = ()
    """A sentence for each source that did not answer."""

    @property
    def proven(self) -> Mapping[str, str]:
        """namespace/name by uid, of pods that the kubelet's two records agree on."""
        return {uid: key for each in self.pods for uid, key in each.proven.items()}


async def pods_holding(paths: KubeletPaths, clock: Clock, resource: str) -> Holdings | None:
    """Ask both sources; None where neither answers."""
    silent: list[str] = []
    listing: tuple[ListedPod, ...] | None = None
    try:
        listing = await listed_pods(paths, clock)
    except Unavailable as error:
        silent.append(str(error))
    # The checkpoint second: what podresources lists has been written there before.
    entries = await asyncio.to_thread(_entries, paths, silent, listing is not None)
    if listing is None and entries is None:
        return None
    return Holdings(join(listing, entries, resource), listing is not None, tuple(silent))


def _entries(paths: KubeletPaths, silent: list[str], listed: bool) -> Sequence[Entry] | None:
    try:
        return checkpoint.parse(paths.checkpoint.read_bytes()).checkpoint.entries or ()
    except FileNotFoundError:
        if listed and paths.device_plugins.is_dir():
            return ()  # A kubelet that has given out a device has written it down.
        # Somebody may have removed it: alone, that it is not there says nothing.
        silent.append(f"there is no {paths.checkpoint}")
    except (OSError, ColocateError) as error:
        silent.append(f"checkpoint: {error}")
    return None


def join(
    listing: Sequence[ListedPod] | None, entries: Sequence[Entry] | None, resource: str
) -> tuple[Holding, ...]:
    """One holding per pod: by name and uid where both are known, by one of them where not.

    A name and a uid belong together where what the uid holds is what the name holds, and nobody else says so: where
    two claim the same, neither is given it. A uid that no pod can have is left out; its ids are still held.
    """
    named: dict[tuple[str, str], set[str]] = {}
    for pod in listing or ():
        for container, resources in pod.containers.items():
            for id in resources.get(resource, ()):
                named.setdefault((container, id), set()).add(pod.key)
    ours = [entry for entry in entries or () if entry.resource == resource]
    held: dict[str, set[str]] = {}
    keys: dict[str, set[str]] = {}
    for entry in ours:
        if is_path_word(entry.pod_uid):
            held.setdefault(entry.pod_uid, set()).update(entry.ids)
            for id in entry.ids:
                keys.setdefault(entry.pod_uid, set()).update(named.get((entry.container, id), ()))
    claims = Counter(key for candidates in keys.values() for key in candidates)
    alone = {
        uid: key
        for uid, candidates in keys.items()
        for key in candidates
        if len(candidates) == 1 and claims[key] == 1
    }
    with_uid = [
        Holding(uid=uid, key=alone.get(uid, ""), ids=_in_order(ids)) for uid, ids in sorted(held.items())
    ]
    without: dict[str, set[str]] = {}
    for (_, id), candidates in named.items():
        for key in candidates - set(alone.values()):
            without.setdefault(key, set()).add(id)
    known = {id for _, id in named}.union(*held.values())
    nobodys = frozenset[str]().union(*(entry.ids for entry in ours)) - known
    return (
        *with_uid,
        *(Holding(key=key, ids=_in_order(ids)) for key, ids in sorted(without.items())),
        *([Holding(ids=_in_order(nobodys))] if nobodys else []),
    )


def _in_order(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(ids)))
