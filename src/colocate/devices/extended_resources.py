"""Extended resources of a node: what provides each, and whether it can be removed for good.

Decided from what the API shows (capacity, allocatable, who wrote them, the kubelet's last heartbeat) and, for the
node of this machine, from what its kubelet says. What is inferred is marked, and the reason names the other
possibility. Never decides to remove anything.

What a kubelet does (seen on 1.34): when a plugin goes, allocatable is 0 at the next sync; for five minutes the
kubelet keeps capacity and restores it if it is removed; then capacity is 0 and the key stays until it is removed. A
kubelet that restarts shows 0 and 0, and counts the five minutes from there. A resource that was patched into
capacity by hand becomes allocatable, and the kubelet does not change it.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from colocate.devices.node_facts import NodeRecords
from colocate.devices.requests import RequestingPod, requested
from colocate.model import quantity
from colocate.model.resource_name import is_extended

GRACE = 300.0
"""Seconds for which a kubelet keeps the devices of a plugin that has gone."""
SYNC = 10.0
"""Seconds between two syncs of a node's status, by default."""
LATE = 1.5 * SYNC
"""Seconds after which a change that was due with a sync will not come."""


class ResourceState(StrEnum):
    """What provides a resource."""

    ALIVE = "alive"
    """A device plugin, or an agent that writes a number beside its plugin's devices."""
    UNHEALTHY = "unhealthy"
    """A device plugin without a healthy device: capacity and no allocatable, permanently."""
    HAND_PATCHED = "hand-patched"
    """A user or program that wrote it into the node's status."""
    STALE = "stale"
    """Nothing any more; the kubelet still waits for the plugin and would put it back."""
    REMOVABLE = "removable"
    """Nothing any more; the kubelet has forgotten it, and only a key at 0 is left."""
    LEAVING = "leaving"
    """Removed from capacity; allocatable follows with the kubelet's next sync."""
    UNKNOWN = "unknown"
    """A plugin or a patch by hand: the API server does not say who wrote it, or the kubelet has not synced since."""


class Before(msgspec.Struct, frozen=True):
    """What an earlier look showed and this one cannot."""

    gone_by: float | None = None
    """When the plugin was first seen gone."""
    empty_by: float | None = None
    """When the kubelet was first seen with 0 and 0 after its start, waiting for the plugin."""
    put_back: float | None = None
    """When the kubelet had put the resource back, so it had not forgotten it."""


class Holder(msgspec.Struct, frozen=True):
    """A pod that has not finished, and how many devices it takes."""

    pod: str
    """namespace/name"""
    count: int


class ExtendedResource(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A resource of a node with its state."""

    node: str
    name: str
    capacity: int | None
    allocatable: int | None
    """None if the status does not have the key."""
    requested: int
    holders: tuple[Holder, ...]
    state: ResourceState
    certain: bool
    """False if this is only the likeliest state; the reason names the other."""
    reason: str
    remaining: float | None = None
    """For a stale resource: seconds until the kubelet forgets it, at most; None if unknown.

    It may take longer if the plugin had no healthy device before it went: then nothing shows when it went.
    """
    gone_by: float | None = None
    """For a stale resource: the latest moment from which the kubelet counts; as uncertain as `remaining`."""

    @property
    def is_stale(self) -> bool:
        return self.state in (ResourceState.STALE, ResourceState.REMOVABLE)


class _Verdict(msgspec.Struct, frozen=True):
    state: ResourceState
    certain: bool
    reason: str
    remaining: float | None = None
    gone_by: float | None = None


_NO_MEMORY = Before()


def judge(
    node: NodeRecords, pods: Iterable[RequestingPod], now: float, before: Mapping[str, Before] | None = None
) -> list[ExtendedResource]:
    """Every extended resource of a node, by name. Ignores pods of other nodes and finished pods."""
    names = sorted(name for name in {*node.capacity, *node.allocatable} if is_extended(name))
    holders = _holders(node.name, pods)
    verdicts = {name: _judge(node, name, now, (before or {}).get(name, _NO_MEMORY)) for name in names}
    found = []
    for name in names:
        verdict = _beside(node, name, verdicts)
        of_it = tuple(holders.get(name, ()))
        found.append(
            ExtendedResource(
                node=node.name,
                name=name,
                capacity=_count(node.capacity, name),
                allocatable=_count(node.allocatable, name),
                requested=sum(holder.count for holder in of_it),
                holders=of_it,
                **msgspec.structs.asdict(verdict),
            )
        )
    return found


def remember(judged: Sequence[ExtendedResource]) -> dict[str, Before]:
    """What the next look at this node should know from this one, to bound the end of the grace."""
    return {
        one.name: Before(gone_by=one.gone_by) if one.capacity else Before(empty_by=one.gone_by)
        for one in judged
        if one.gone_by is not None
    }


def _beside(node: NodeRecords, name: str, verdicts: Mapping[str, _Verdict]) -> _Verdict:
    """A resource that an agent writes beside its plugin: alive while the plugin is."""
    own = verdicts[name]
    plugin = verdicts.get(node.beside.get(name, ""))
    if plugin is None or plugin.state not in (ResourceState.ALIVE, ResourceState.UNHEALTHY):
        return own
    if own.state not in (ResourceState.HAND_PATCHED, ResourceState.UNKNOWN):
        return own
    return _Verdict(
        ResourceState.ALIVE, plugin.certain, f"the agent of {node.beside[name]} writes it beside its devices"
    )


def _judge(node: NodeRecords, name: str, now: float, before: Before) -> _Verdict:
    if name not in node.capacity:
        return _Verdict(
            ResourceState.LEAVING,
            True,
            "it is out of capacity; the kubelet drops allocatable with its next sync",
        )
    capacity, allocatable = _count(node.capacity, name) or 0, _count(node.allocatable, name)
    if healthy := (node.kubelet.healthy or {}).get(name):
        return _Verdict(ResourceState.ALIVE, True, f"podresources of this node lists {healthy} healthy")
    if node.kubelet.registered is not None and name not in node.kubelet.registered:
        return _unknown_to_kubelet(capacity)
    knows = name in (node.kubelet.registered or {})
    hand = None if knows else node.hand(name)
    if hand is not None and allocatable in (None, capacity):
        return _Verdict(
            ResourceState.HAND_PATCHED,
            False,
            f"{hand.manager} wrote its capacity last, not the kubelet; a plugin with as many devices would look "
            f"the same",
        )
    if hand is not None and _is_after(hand.time, node.last_word):
        return _Verdict(
            ResourceState.UNKNOWN,
            False,
            f"{hand.manager} has changed its capacity since the kubelet's last sync; the next one shows whose it is",
        )
    if allocatable is None and capacity:
        return _Verdict(ResourceState.HAND_PATCHED, False, "the kubelet has not made it allocatable")
    if allocatable:
        return _usable(node, capacity, allocatable, knows)
    return _stopped(node, name, now, before) if capacity else _empty(node, name, now, before)


def _unknown_to_kubelet(capacity: int) -> _Verdict:
    if capacity:
        return _Verdict(ResourceState.HAND_PATCHED, True, "the kubelet's checkpoint does not know it")
    return _Verdict(ResourceState.REMOVABLE, True, "the kubelet's checkpoint no longer knows it")


def _usable(node: NodeRecords, capacity: int, allocatable: int, knows: bool) -> _Verdict:
    if node.writers is None and allocatable == capacity and not knows:
        return _Verdict(
            ResourceState.UNKNOWN,
            False,
            "the API server does not say whether the kubelet or a hand wrote its capacity",
        )
    sick = f", {capacity - allocatable} of {capacity} unhealthy" if allocatable < capacity else ""
    if node.silent:
        return _Verdict(ResourceState.ALIVE, False, f"so the kubelet said last, and it is silent{sick}")
    return _Verdict(ResourceState.ALIVE, True, f"the kubelet reports its plugin's devices{sick}")


def _stopped(node: NodeRecords, name: str, now: float, before: Before) -> _Verdict:
    """Capacity without allocatable: no plugin, or one without a healthy device."""
    if node.silent:
        return _Verdict(
            ResourceState.STALE,
            False,
            "its plugin has gone or has no healthy device; the kubelet is silent, and will count its five "
            "minutes from when it starts",
        )
    gone_by = _earliest(now, node.last_word, before.gone_by)
    if now > gone_by + GRACE + LATE:
        return _Verdict(
            ResourceState.UNHEALTHY,
            False,
            "its plugin runs and has no healthy device, or had none and stopped less than five minutes ago",
        )
    seen = (node.kubelet.registered or {}).get(name)
    otherwise = "" if seen else "; or it runs and has no healthy device"
    return _Verdict(
        ResourceState.STALE,
        bool(seen),
        f"its plugin has gone, and the kubelet waits for it{otherwise}",
        _remaining(gone_by, now),
        gone_by,
    )


def _empty(node: NodeRecords, name: str, now: float, before: Before) -> _Verdict:
    """Neither capacity nor allocatable: the kubelet has forgotten the resource, or has just started."""
    if before.put_back is not None and now <= before.put_back + GRACE + LATE:
        return _Verdict(
            ResourceState.STALE,
            True,
            "the kubelet put it back: it started less than five minutes ago, or a plugin without devices runs",
            _remaining(before.put_back, now),
        )
    last_word = node.last_word
    if name in (node.kubelet.registered or {}):
        since = _earliest(now, last_word, before.empty_by)
        if now > since + GRACE + LATE:
            reason = "a plugin without devices runs, or stopped less than five minutes ago"
            return _Verdict(ResourceState.UNHEALTHY, False, reason)
        reason = "the kubelet has started and waits for its plugin; or a plugin without devices runs"
        return _Verdict(ResourceState.STALE, False, reason, _remaining(since, now), since)
    if node.silent:
        return _Verdict(
            ResourceState.REMOVABLE, False, "the kubelet is silent; when it starts it may put it back"
        )
    if last_word is not None and now > last_word + GRACE + LATE:
        return _Verdict(ResourceState.REMOVABLE, True, "its plugin has gone and the kubelet has let go of it")
    return _Verdict(
        ResourceState.REMOVABLE,
        False,
        "its plugin has gone and the kubelet has let go of it, unless it started less than five minutes ago",
    )


def _is_after(moment: float | None, other: float | None) -> bool:
    """Whether the first is later, or in the same second, the precision of these times."""
    return moment is not None and (other is None or moment >= other)


def _earliest(now: float, *moments: float | None) -> float:
    """The earliest of the known times, and not later than now: clocks differ."""
    return min(now, *(moment for moment in moments if moment is not None))


def _remaining(since: float, now: float) -> float:
    return max(0.0, since + GRACE - now)


def _count(amounts: Mapping[str, str], name: str) -> int | None:
    return quantity.whole(amounts[name]) if name in amounts else None


def _holders(node: str, pods: Iterable[RequestingPod]) -> dict[str, list[Holder]]:
    found: dict[str, list[Holder]] = {}
    for pod in pods:
        if pod.spec.node_name != node or pod.is_finished:
            continue
        for name, count in requested(pod).items():
            if count:
                found.setdefault(name, []).append(Holder(pod.key, count))
    for holders in found.values():
        holders.sort(key=lambda holder: holder.pod)
    return found
