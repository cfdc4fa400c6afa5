"""Decides the steps of a Deployment's rollout: a few pods at a time, within its bounds. Pure.

Not implemented: the progress deadline, and spreading a change of scale over several sets during a rollout.
"""

import hashlib

import msgspec

from colocate.lab.api.objects import (
    Object,
    annotations_of,
    at,
    clone,
    encode,
    labels_of,
    metadata,
    name_of,
)
from colocate.lab.api.pod_defaults import share_of

HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


class Sizes(msgspec.Struct, frozen=True):
    """The wanted and actual numbers of a set's pods."""

    name: str
    wanted: int
    current: int = 0
    """Existing pods, including those that are stopping."""
    available: int = 0


class Bounds(msgspec.Struct, frozen=True):
    """The bounds of a rollout."""

    replicas: int
    surge: int = 0
    unavailable: int = 0
    recreate: bool = False


def bounds(deployment: Object) -> Bounds:
    spec = deployment["spec"]
    replicas = int(spec.get("replicas") or 0)
    strategy = spec.get("strategy") or {}
    if strategy.get("type") == "Recreate":
        return Bounds(replicas, recreate=True)
    rolling = strategy.get("rollingUpdate") or {}
    surge = share_of(rolling.get("maxSurge", "25%"), replicas, round_up=True)
    unavailable = share_of(rolling.get("maxUnavailable", "25%"), replicas, round_up=False)
    # With both at 0, the rollout could not proceed.
    return Bounds(replicas, surge, unavailable or (0 if surge else 1))


def resize(limits: Bounds, new: Sizes, old: list[Sizes]) -> dict[str, int]:
    """The next sizes of the sets that change. `old` is oldest first."""
    if limits.recreate:
        shrunk = {one.name: 0 for one in old if one.wanted}
        if shrunk or any(one.current for one in old):
            return shrunk
        return {} if new.wanted == limits.replicas else {new.name: limits.replicas}
    changes = _grow(limits, new, old)
    grown = msgspec.structs.replace(new, wanted=changes.get(new.name, new.wanted))
    return changes | _shrink(limits, grown, old)


def _grow(limits: Bounds, new: Sizes, old: list[Sizes]) -> dict[str, int]:
    if new.wanted > limits.replicas or not any(one.wanted for one in old):
        return {} if new.wanted == limits.replicas else {new.name: limits.replicas}
    room = limits.replicas + limits.surge - new.wanted - sum(one.wanted for one in old)
    size = min(limits.replicas, new.wanted + max(0, room))
    return {} if size == new.wanted else {new.name: size}


def _shrink(limits: Bounds, new: Sizes, old: list[Sizes]) -> dict[str, int]:
    least = limits.replicas - limits.unavailable
    total = new.wanted + sum(one.wanted for one in old)
    spare = total - least - max(0, new.wanted - new.available)
    sizes = {one.name: one.wanted for one in old}
    # Pods that are not ready go first: removing them makes nothing worse.
    for one in old:
        cut = min(max(0, spare), one.wanted - min(one.wanted, one.available))
        sizes[one.name] -= cut
        spare -= cut
    free = new.available + sum(min(one.available, one.wanted) for one in old) - least
    for one in old:
        cut = max(0, min(free, spare, sizes[one.name]))
        sizes[one.name] -= cut
        free -= cut
        spare -= cut
    return {one.name: sizes[one.name] for one in old if sizes[one.name] != one.wanted}


def template_hash(template: Object, collisions: int) -> str:
    """The label value that identifies the pods of a template."""
    digest = hashlib.sha256(encode(sort(template)) + str(collisions).encode()).digest()
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[:10])


def sort(value: object) -> object:
    """The data with sorted keys, so that equal templates have equal bytes."""
    if isinstance(value, dict):
        return {key: sort(value[key]) for key in sorted(value)}
    return [sort(one) for one in value] if isinstance(value, list) else value


def same_template(deployment: Object, replica_set: Object) -> bool:
    """Whether a set has the Deployment's current template."""
    theirs = clone(replica_set["spec"]["template"])
    labels = {key: value for key, value in labels_of(theirs).items() if key != HASH}
    theirs["metadata"] = _without_empty(metadata(theirs) | {"labels": labels})
    ours = deployment["spec"]["template"]
    return bool(theirs == ours | {"metadata": _without_empty(metadata(ours))})


def _without_empty(marks: Object) -> Object:
    return {key: value for key, value in marks.items() if value not in (None, {}, [], "")}


def revision_of(obj: Object) -> int:
    text = annotations_of(obj).get(REVISION, "0")
    return int(text) if text.isdigit() else 0


def sizes_of(replica_set: Object, pods: list[Object]) -> Sizes:
    """The sizes of a set with these pods."""
    return Sizes(
        name_of(replica_set),
        int(at(replica_set, "spec", "replicas") or 0),
        sum(1 for pod in pods if at(pod, "status", "phase") not in ("Succeeded", "Failed")),
        int(at(replica_set, "status", "availableReplicas") or 0),
    )
