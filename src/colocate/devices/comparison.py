"""How a checkpoint differs from the other records: podresources, the API's pods, the node's status.

A source that did not answer is ignored: nothing is concluded from its silence. Not every difference is a fault: a
kubelet keeps the entries of dead pods until its next allocation, and the API lags behind it by a sync.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import msgspec

from colocate.devices.findings import Code, Finding, Severity, counted, listed
from colocate.devices.pod_names import claimants, names
from colocate.model.checkpoint import Checkpoint, Entry
from colocate.model.records import KnownPod, ListedPod, NodeCounts, Records

_LOOK_AGAIN = "look again in a minute; if it stays, restart the kubelet, which reads its record again"


def compare(checkpoint: Checkpoint, records: Records) -> list[Finding]:
    """Every difference: pods first, then resources."""
    known = names(checkpoint, records.listing, records.pods)
    claims = claimants(checkpoint, records.listing, records.pods)
    contested = {key: uids for key, uids in claims.items() if len(uids) > 1}
    findings = [*_stale_pods(checkpoint, records, known, contested)]
    if records.pods is None:
        findings += _contested(contested)
    if records.listing is not None:
        told_apart = [pod for pod in records.listing if pod.key not in contested]
        findings += _against_listing(checkpoint, told_apart, known)
    if records.pods is not None:
        findings += _against_requests(checkpoint, _by_kubelets_uid(records.pods, known))
    return [*findings, *_resources(checkpoint, records.healthy, records.node)]


# Pods ------------------------------------------------------------------------------------------------


def _stale_pods(
    checkpoint: Checkpoint,
    records: Records,
    known: Mapping[str, str],
    contested: Mapping[str, Sequence[str]],
) -> Iterator[Finding]:
    if records.pods is None and records.listing is None:
        return
    if records.pods is None:
        source, alive, ended = "podresources", {*known, *chain.from_iterable(contested.values())}, set[str]()
    else:
        living = [pod for pod in records.pods if not pod.is_finished]
        # An unproven mirror is enough to keep the devices that a static pod may hold.
        source, alive = "the API", {*(pod.uid for pod in living), *(pod.mirrors for pod in living)}
        ended = {pod.uid for pod in records.pods if pod.is_finished and not pod.mirrors}
    held: dict[str, list[Entry]] = defaultdict(list)
    for entry in checkpoint.entries or ():
        if entry.pod_uid not in alive:
            held[entry.pod_uid].append(entry)
    for uid, entries in held.items():
        resources = {entry.resource for entry in entries}
        count = sum(len(entry.ids) for entry in entries)
        state = f"has ended ({known[uid]})" if uid in ended else f"is unknown to {source}"
        yield Finding(
            Code.STALE_POD,
            Severity.INFO,
            uid,
            f"pod {uid} {state}, but holds {counted(count, 'device')} of {listed(resources)}",
            "nothing: the kubelet frees them before its next allocation; to free them at once, stop the "
            f"kubelet and run 'colocate checkpoint repair --drop-pod {uid}'",
        )


def _contested(contested: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """Pods that hold the same devices, of which podresources lists fewer: it does not tell which are gone."""
    listed_by_uids: dict[frozenset[str], list[str]] = defaultdict(list)
    for key, uids in contested.items():
        listed_by_uids[frozenset(uids)].append(key)
    for held_by, keys in listed_by_uids.items():
        if len(keys) < len(held_by):
            yield Finding(
                Code.STALE_POD,
                Severity.WARNING,
                listed(keys),
                f"pods {listed(held_by)} hold the same devices, and podresources lists only {listed(keys)}: "
                "not all"
                " of these pods are alive",
                "also ask the API, which knows uids: add --kubeconfig and --node",
            )


def _against_listing(
    checkpoint: Checkpoint, listing: Sequence[ListedPod], known: Mapping[str, str]
) -> Iterator[Finding]:
    """A container that podresources does not list is an init container that has ended: no difference."""
    recorded = {
        (known[entry.pod_uid], entry.container, entry.resource): entry.ids
        for entry in checkpoint.entries or ()
        if entry.pod_uid in known
    }
    for pod in listing:
        for container, resources in pod.containers.items():
            subject = f"{pod.key}/{container}"
            for resource, ids in resources.items():
                ours = recorded.pop((pod.key, container, resource), None)
                if ours is None:
                    yield Finding(
                        Code.MISSING_ENTRY,
                        Severity.WARNING,
                        subject,
                        f"podresources says that {subject} holds {listed(ids)} of {resource}, but the "
                        "checkpoint does not",
                        f"is this the checkpoint of this kubelet? {_LOOK_AGAIN}",
                    )
                elif ours != ids:
                    yield _drifted(subject, resource, ours - ids, ids - ours)
    containers = {(pod.key, container) for pod in listing for container in pod.containers}
    for (key, container, resource), ours in recorded.items():
        if ours and (key, container) in containers:
            yield _drifted(f"{key}/{container}", resource, ours, frozenset())


def _drifted(subject: str, resource: str, ours: frozenset[str], theirs: frozenset[str]) -> Finding:
    only = [f"only the checkpoint has {listed(ours)}"] if ours else []
    only += [f"only podresources has {listed(theirs)}"] if theirs else []
    return Finding(
        Code.DRIFT,
        Severity.WARNING,
        subject,
        f"the checkpoint and podresources disagree about {resource} of {subject}: {', '.join(only)}",
        _LOOK_AGAIN,
    )


def _by_kubelets_uid(pods: Sequence[KnownPod], known: Mapping[str, str]) -> list[KnownPod]:
    """A mirror counts as the pod that it names only if the kubelet's records give that uid to its name."""
    proven = [pod for pod in pods if pod.mirrors and known.get(pod.mirrors) == pod.key]
    return [
        *(pod for pod in pods if not pod.mirrors),
        *(msgspec.structs.replace(pod, uid=pod.mirrors) for pod in proven),
    ]


def _against_requests(checkpoint: Checkpoint, pods: Sequence[KnownPod]) -> Iterator[Finding]:
    """Compare requests only with resources that plugins of this kubelet registered: others leave no entries."""
    held = {(e.pod_uid, e.container, e.resource): len(e.ids) for e in checkpoint.entries or ()}
    served = {*(checkpoint.registered or {}), *(entry.resource for entry in checkpoint.entries or ())}
    for pod in pods:
        if pod.phase != "Running":
            continue
        for container, requests in pod.requests.items():
            subject = f"{pod.key}/{container}"
            for resource, wanted in requests.items():
                has = held.get((pod.uid, container, resource))
                if resource not in served or not wanted or has == wanted:
                    continue
                code = Code.MISSING_ENTRY if has is None else Code.DRIFT
                yield Finding(
                    code,
                    Severity.WARNING,
                    subject,
                    f"{subject} runs and requests {wanted} of {resource}, but the checkpoint has"
                    f" {'no entry for it' if has is None else has}",
                    f"delete the pod, so that it is given devices again, or {_LOOK_AGAIN}",
                )


# Resources -------------------------------------------------------------------------------------------


def _resources(
    checkpoint: Checkpoint, healthy: Mapping[str, frozenset[str]] | None, node: NodeCounts | None
) -> Iterator[Finding]:
    registered = {resource: frozenset(ids or ()) for resource, ids in (checkpoint.registered or {}).items()}
    for resource, ids in sorted(registered.items()):
        if (finding := _gone(resource, ids, healthy, node)) is not None:
            yield finding
            continue
        if healthy is not None and ids != healthy.get(resource, frozenset()):
            now = healthy.get(resource, frozenset())
            yield _drifted(resource, "the healthy devices", ids - now, now - ids)
        if node is not None:
            yield from _counts(resource, len(ids), node)
    if node is not None:
        for resource, count in sorted(node.capacity.items()):
            if resource not in registered:
                yield _not_of_a_plugin(resource, count)


def _gone(
    resource: str, ids: frozenset[str], healthy: Mapping[str, frozenset[str]] | None, node: NodeCounts | None
) -> Finding | None:
    """Registered resources without a usable device: the plugin has stopped, or all devices are broken."""
    if not ids:
        return None
    if healthy is not None and not healthy.get(resource):
        where = "podresources has no healthy device of it"
    elif node is not None and not node.allocatable.get(resource):
        where = "nothing of it is allocatable on the node"
    else:
        return None
    return Finding(
        Code.PLUGIN_GONE,
        Severity.WARNING,
        resource,
        f"the checkpoint has {counted(len(ids), 'registered device')} of {resource}, but {where}: its plugin "
        "has"
        " stopped, or all devices are unhealthy",
        "start the plugin; or, if you no longer need it, run 'colocate resource remove' when its five minutes "
        "of grace are over",
    )


def _counts(resource: str, registered: int, node: NodeCounts) -> Iterator[Finding]:
    capacity, allocatable = node.capacity.get(resource, 0), node.allocatable.get(resource, 0)
    if allocatable != registered or capacity < registered:
        yield Finding(
            Code.COUNTS_DIFFER,
            Severity.WARNING,
            resource,
            f"the node's status has capacity {capacity} and allocatable {allocatable} of {resource}, but the "
            f"checkpoint has {registered} registered",
            "look again after the next sync of the node's status, in about 10 s; if it stays, check whether "
            "another program or user patches the status",
        )
    elif capacity > allocatable:
        yield Finding(
            Code.UNHEALTHY_DEVICES,
            Severity.INFO,
            resource,
            f"{counted(capacity - allocatable, 'device')} of {capacity} of {resource}"
            f" {'is' if capacity - allocatable == 1 else 'are'} unhealthy",
            "read the log of its device plugin",
        )


def _not_of_a_plugin(resource: str, count: int) -> Finding:
    if count:
        return Finding(
            Code.NOT_OF_A_PLUGIN,
            Severity.INFO,
            resource,
            f"the node's status has {count} of {resource}, which no plugin has registered: advertised by hand, "
            "or"
            " not by a device plugin",
            f"'colocate resource remove' removes {resource}, if no pod needs it",
        )
    return Finding(
        Code.PLUGIN_GONE,
        Severity.INFO,
        resource,
        f"the node's status still names {resource}, with capacity 0 and no plugin",
        f"'colocate resource remove' removes {resource}",
    )
