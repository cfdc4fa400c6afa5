"""Which pod holds which devices: joins podresources, which has names, and the checkpoint, which has uids.

A name and a uid share the devices that containers of one name hold in both records. Nothing is judged: entries of
the checkpoint that podresources does not list may belong to pods that have ended, or to a kubelet that has just
started. The caller knows more about pods.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from colocate.model.checkpoint import Entry
from colocate.model.path_word import is_path_word
from colocate.model.records import ListedPod


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """What one pod holds of a resource."""

    uid: str = ""
    """Empty where the checkpoint does not know it."""
    key: str = ""
    """namespace/name; empty where podresources does not list it."""
    ids: tuple[str, ...]

    @property
    def proven(self) -> Mapping[str, str]:
        """The pod's name by its uid, where the kubelet's two records agree; otherwise empty."""
        return {self.uid: self.key} if self.uid and self.key else {}


class Holdings(msgspec.Struct, frozen=True):
    """All that is known of who holds what."""

    pods: tuple[Holding, ...] = ()
    listed: bool = True
    """Whether podresources answered, which is the kubelet's own account."""
    silent: tuple[str, ...] = ()
    """A sentence for each source that did not answer."""

    @property
    def proven(self) -> Mapping[str, str]:
        """namespace/name by uid, of pods that the kubelet's two records agree on."""
        return {uid: key for each in self.pods for uid, key in each.proven.items()}


def in_common(listing: Iterable[ListedPod], entries: Iterable[Entry]) -> Mapping[str, Counter[str]]:
    """By uid, by name: how many devices both records give to containers of the same name."""
    named: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for pod in listing:
        for container, resources in pod.containers.items():
            for resource, ids in resources.items():
                for id in ids:
                    named[container, resource, id].append(pod.key)
    common: dict[str, Counter[str]] = defaultdict(Counter)
    for entry in entries:
        for id in entry.ids:
            common[entry.pod_uid].update(named.get((entry.container, entry.resource, id), ()))
    return common


def claimants(listing: Iterable[ListedPod], entries: Iterable[Entry]) -> Mapping[str, Sequence[str]]:
    """By name, the uids that may belong to it: those that hold most of its devices.

    The pod's own uid holds all of them; another uid can at best hold as many.
    """
    claims: dict[str, Counter[str]] = defaultdict(Counter)
    for uid, counts in in_common(listing, entries).items():
        for key in _most(counts):
            claims[key][uid] = counts[key]
    return {key: _most(counts) for key, counts in claims.items()}


def proven_names(listing: Iterable[ListedPod], entries: Iterable[Entry]) -> Mapping[str, str]:
    """The name by uid, where no other uid and no other name has anything in common with the two.

    Where two claim the same, neither gets it, because actions on pods depend on this.
    """
    common = in_common(listing, entries)
    claims = Counter(key for counts in common.values() for key in counts)
    return {uid: key for uid, counts in common.items() for key in counts if len(counts) == claims[key] == 1}


def holdings_of(
    listing: Sequence[ListedPod] | None, entries: Sequence[Entry] | None, resource: str
) -> tuple[Holding, ...]:
    """One holding per pod: with name and uid where both are proven, otherwise with one of them.

    A uid that no pod can have is left out; its ids are still held.
    """
    ours = [entry for entry in entries or () if entry.resource == resource]
    possible = [entry for entry in ours if is_path_word(entry.pod_uid)]
    by_uid: dict[str, set[str]] = defaultdict(set)
    for entry in possible:
        by_uid[entry.pod_uid] |= entry.ids
    by_name: dict[str, set[str]] = defaultdict(set)
    for pod in listing or ():
        for resources in pod.containers.values():
            if ids := resources.get(resource):
                by_name[pod.key] |= ids
    proven = proven_names(listing or (), possible)
    without_uid = by_name.keys() - proven.values()
    nobodys = {id for entry in ours for id in entry.ids}.difference(*by_uid.values(), *by_name.values())
    return (
        *(
            Holding(uid=uid, key=proven.get(uid, ""), ids=_in_order(ids))
            for uid, ids in sorted(by_uid.items())
        ),
        *(Holding(key=key, ids=_in_order(by_name[key])) for key in sorted(without_uid)),
        *([Holding(ids=_in_order(nobodys))] if nobodys else []),
    )


def _most(counts: Counter[str]) -> Sequence[str]:
    most = max(counts.values(), default=0)
    return [name for name, count in counts.items() if count == most]


def _in_order(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(ids))
