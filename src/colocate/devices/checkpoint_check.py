"""What is wrong with a checkpoint, from the file alone: its checksum, its structure, which pods hold what.

`comparison` compares it with other records. An init container and an app container of one pod may hold the same
device, because it is passed on: only two pods are a conflict.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from colocate.devices.findings import Code, Finding, Severity, counted, listed
from colocate.devices.injection import Known, named_instead
from colocate.model.checkpoint import NO_TOPOLOGY, Checkpoint, Entry, Format, Ids, Reading
from colocate.model.resource_name import why_not_allowed

_RECREATE = "delete the pod, so that its successor gets devices again"
_EDITED = "no kubelet writes this: undo the edit, or use the backup"


def check(reading: Reading) -> list[Finding]:
    """Every finding: about the file first, then in the order of the entries."""
    checkpoint = reading.checkpoint
    return [
        *_checksum(reading),
        *_format(reading),
        *_structure(checkpoint),
        *_injection(reading),
        *_held_twice(checkpoint),
        *_not_registered(checkpoint),
    ]


def _checksum(reading: Reading) -> Iterator[Finding]:
    if reading.is_trusted:
        return
    states = "states no checksum" if reading.stated is None else f"states checksum {reading.stated}"
    yield Finding(
        Code.CHECKSUM,
        Severity.ERROR,
        "file",
        f"the file {states}, but its data has {reading.computed}: a kubelet that starts with it forgets every"
        " allocation, and may give devices that are in use to other pods",
        "find out what changed the file; if the data is right, stop the kubelet and run"
        " 'colocate checkpoint repair --fix-checksum'",
    )


def _format(reading: Reading) -> Iterator[Finding]:
    if reading.format is Format.NUMA:
        return
    unchecked = "; it has no checksum, so nothing shows whether it is complete"
    yield Finding(
        Code.OLD_FORMAT,
        Severity.INFO,
        "file",
        f"the file is in the format of kubelets {reading.format.value}, which kubelets from 1.31 on do not read"
        f"{unchecked if reading.format is Format.PLAIN else ''}",
        "nothing, if the node's kubelet is that old; before an upgrade to 1.31 or later, drain the node",
    )


# Structure -------------------------------------------------------------------------------------------


def _structure(checkpoint: Checkpoint) -> Iterator[Finding]:
    seen = Counter((entry.pod_uid, entry.container, entry.resource) for entry in checkpoint.entries or ())
    for entry in checkpoint.entries or ():
        yield from _entry(entry)
        key = (entry.pod_uid, entry.container, entry.resource)
        if seen.pop(key, 0) > 1:
            yield Finding(
                Code.REPEATED_ENTRY,
                Severity.ERROR,
                _subject(entry),
                f"{_who(entry)} has more than one entry for {entry.resource}: a kubelet uses only the last",
                _EDITED,
            )
    for resource, ids in (checkpoint.registered or {}).items():
        yield from _repeated(ids, resource, f"the registered devices of {resource}")
    resources = dict.fromkeys(entry.resource for entry in checkpoint.entries or () if entry.resource)
    for resource in resources | dict.fromkeys(checkpoint.registered or {}):
        if reason := why_not_allowed(resource):
            yield Finding(
                Code.RESOURCE_NAME,
                Severity.WARNING,
                resource,
                f"{resource!r} cannot be the name of an extended resource: {reason}",
                _EDITED,
            )


def _entry(entry: Entry) -> Iterator[Finding]:
    fields = {"pod uid": entry.pod_uid, "container": entry.container, "resource": entry.resource}
    missing = [name for name, value in fields.items() if not value]
    if not entry.ids:
        missing.append("device")
    if missing:
        yield Finding(
            Code.INCOMPLETE_ENTRY,
            Severity.WARNING,
            _subject(entry),
            f"the entry of {_who(entry)} for {entry.resource or 'no resource'} names no "
            f"{' and no '.join(missing)}",
            _EDITED,
        )
    for node, ids in entry.by_node.items():
        if node < NO_TOPOLOGY:
            yield Finding(
                Code.NUMA_NODE,
                Severity.WARNING,
                _subject(entry),
                f"{_who(entry)} holds devices of {entry.resource} on NUMA node {node}, which cannot be",
                _EDITED,
            )
        yield from _repeated(ids, _subject(entry), f"the devices of {entry.resource} of {_who(entry)}")


def _repeated(ids: Ids, subject: str, where: str) -> Iterator[Finding]:
    if ids and len(set(ids)) < len(ids):
        twice = [id for id, count in Counter(ids).items() if count > 1]
        yield Finding(
            Code.REPEATED_ID,
            Severity.WARNING,
            subject,
            f"{where} name {listed(twice)} more than once",
            _EDITED,
        )


# Devices ---------------------------------------------------------------------------------------------


def _injection(reading: Reading) -> Iterator[Finding]:
    known: dict[str, Known] = {}
    entries = reading.checkpoint.entries or ()
    devices = _known_devices(reading.checkpoint)
    for entry, injected in zip(entries, reading.injected, strict=True):
        if injected is None:
            yield Finding(
                Code.INJECTION_UNREADABLE,
                Severity.ERROR,
                _subject(entry),
                f"what was injected into {_who(entry)} for {entry.resource} cannot be read: a kubelet that"
                " starts with it drops this entry",
                _RECREATE,
            )
            continue
        if entry.resource not in known:
            known[entry.resource] = Known(devices[entry.resource])
        others = named_instead(injected, Known(entry.ids), known[entry.resource])
        if others:
            yield Finding(
                Code.INJECTED_OTHER,
                Severity.WARNING,
                _subject(entry),
                f"{_who(entry)} holds {listed(entry.ids)} of {entry.resource}, but what was injected names"
                f" {listed(others)}",
                "a plugin that lets a scheduler choose the device does this on purpose: compare with the pod's"
                f" annotations; otherwise {_RECREATE}",
            )


def _known_devices(checkpoint: Checkpoint) -> dict[str, set[str]]:
    devices: dict[str, set[str]] = defaultdict(set)
    for resource, ids in (checkpoint.registered or {}).items():
        devices[resource].update(ids or ())
    for entry in checkpoint.entries or ():
        devices[entry.resource] |= entry.ids
    return devices


def _held_twice(checkpoint: Checkpoint) -> Iterator[Finding]:
    holders: dict[tuple[str, str], set[str]] = defaultdict(set)
    for entry in checkpoint.entries or ():
        for id in entry.ids:
            holders[entry.resource, id].add(entry.pod_uid)
    shared: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for (resource, id), pods in holders.items():
        if len(pods) > 1:
            shared[resource, tuple(sorted(pods))].append(id)
    for (resource, uids), ids in shared.items():
        yield Finding(
            Code.HELD_TWICE,
            Severity.ERROR,
            resource,
            f"{listed(ids)} of {resource} {'is' if len(ids) == 1 else 'are'} held by pods {listed(uids)}",
            "find with 'colocate checkpoint diff' which of the pods is gone; if all of them run, delete all "
            "but one",
        )


def _not_registered(checkpoint: Checkpoint) -> Iterator[Finding]:
    registered = {resource: frozenset(ids or ()) for resource, ids in (checkpoint.registered or {}).items()}
    without: dict[str, set[str]] = defaultdict(set)
    for entry in checkpoint.entries or ():
        if entry.resource not in registered:
            without[entry.resource].add(entry.pod_uid)
        elif missing := entry.ids - registered[entry.resource]:
            yield Finding(
                Code.NOT_REGISTERED,
                Severity.WARNING,
                _subject(entry),
                f"{_who(entry)} holds {listed(missing)} of {entry.resource}, not registered: unhealthy, or no"
                " longer there",
                "repair the device, or delete the pod; a container that is not running when the kubelet "
                "restarts does not get these devices",
            )
    for resource, pods in without.items():
        yield Finding(
            Code.NOT_REGISTERED,
            Severity.WARNING,
            resource,
            f"no plugin has registered {resource}, which {counted(len(pods), 'pod')}"
            f" {'holds' if len(pods) == 1 else 'hold'}: {listed(pods)}",
            "start the device plugin of this resource, or delete the pods",
        )


def _who(entry: Entry) -> str:
    return f"container {entry.container or '(no name)'} of pod {entry.pod_uid or '(no uid)'}"


def _subject(entry: Entry) -> str:
    return f"{entry.pod_uid}/{entry.container}"
