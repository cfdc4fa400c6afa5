"""Decides whether an evicted bare pod is created again on another node, and writes its manifest. Pure.

It is created once, as it was, with an affinity against this node. It is not created if its owner deleted it, if there
is another pod of its name, if its namespace is gone or was created again, or if too much time has passed.
"""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from colocate.cluster.resources import Object
from colocate.memory.agent.objects import HOSTNAME
from colocate.memory.agent.store import PodNote

_OF_THE_SERVER = (
    *("uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"),
    *("generation", "managedFields", "selfLink"),
)
"""Fields of metadata that the API server sets."""

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

_OF_THIS_LIFE = ("nodeName", "ephemeralContainers")
"""Fields of a spec that belong to this run; the API server refuses new pods with ephemeral containers."""


_EVICTION = ("DisruptionTarget", "EvictionByEvictionAPI")
"""The condition and reason that API servers since 1.26 set on a pod whose eviction they accepted."""

_DOUBT = 300.0
"""Seconds for which a pod that is gone counts as evicted although no answer to its eviction arrived: after a kill,
the next agent starts within this time."""


class NoteFate(StrEnum):
    """What happens to a note."""

    CREATE = "create"
    WAIT = "wait"
    """The pod is still ending."""
    DROP = "drop"
    """The pod must not be created."""
    EXPIRE = "expire"
    """It is too late."""


class NoteVerdict(msgspec.Struct, frozen=True):
    """The decision about a note, with its reason as a clause."""

    fate: NoteFate
    why: str = ""


def verdict(
    note: PodNote,
    pod: Mapping[str, Any] | None,
    namespace: Mapping[str, Any] | None,
    age: float,
    expiry: float,
) -> NoteVerdict:
    """Decide about a note. `pod`, by the note's name, and `namespace` are as they are now; None where gone."""
    if pod is not None:
        return _while_there(note, pod, age, expiry)
    if namespace is None or is_leaving(namespace):
        return NoteVerdict(NoteFate.DROP, f"its namespace {note.namespace} was deleted")
    if _is_later(namespace, note):
        return NoteVerdict(NoteFate.DROP, f"its namespace {note.namespace} was deleted and created again")
    if age > expiry:
        return NoteVerdict(NoteFate.EXPIRE, f"it could not be created for {expiry:g} s")
    if age > _DOUBT and not note.accepted:
        return NoteVerdict(
            NoteFate.EXPIRE, "the agent cannot tell whether it was evicted or its owner deleted it"
        )
    return NoteVerdict(NoteFate.CREATE)


def _while_there(note: PodNote, pod: Mapping[str, Any], age: float, expiry: float) -> NoteVerdict:
    if pod["metadata"]["uid"] != note.uid:
        return NoteVerdict(NoteFate.DROP, "there is another pod with its name")
    if not is_leaving(pod):
        return NoteVerdict(NoteFate.DROP, "it was not evicted")
    if not (note.accepted or was_evicted(pod)) or _is_another_deletion(note, pod):
        return NoteVerdict(NoteFate.DROP, "its owner deleted it")
    return (
        NoteVerdict(NoteFate.EXPIRE, f"it has not ended for {expiry:g} s")
        if age > expiry
        else NoteVerdict(NoteFate.WAIT)
    )


def _is_later(namespace: Mapping[str, Any], note: PodNote) -> bool:
    """Whether a namespace was created after the pod left."""
    marks = namespace["metadata"]
    if note.namespace_uid:
        return bool(marks["uid"] != note.namespace_uid)
    return datetime.fromisoformat(marks["creationTimestamp"]).timestamp() > note.noted


def _is_another_deletion(note: PodNote, pod: Mapping[str, Any]) -> bool:
    """Whether another client deleted the pod after the eviction, with an earlier end.

    A grace period of 0 is the kubelet's own last deletion of a pod that a finalizer keeps.
    """
    marks = pod["metadata"]
    sooner = note.deletion and marks["deletionTimestamp"] != note.deletion
    return bool(sooner and marks.get("deletionGracePeriodSeconds"))


def was_evicted(pod: Mapping[str, Any]) -> bool:
    """Whether the API server marks a pod as evicted."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any((one.get("type"), one.get("reason")) == _EVICTION for one in conditions)


def elsewhere(pod: Mapping[str, Any], hostname: str, namespace_uid: str, now: float) -> PodNote:
    """The note of a pod that will be created on any node but the one with this host name."""
    marks = pod["metadata"]
    kept = {name: value for name, value in marks.items() if name not in _OF_THE_SERVER}
    spec = {name: value for name, value in pod["spec"].items() if name not in _OF_THIS_LIFE}
    spec["affinity"] = _avoiding(spec.get("affinity") or {}, hostname)
    body: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": kept, "spec": spec}
    return PodNote(
        uid=marks["uid"],
        namespace=marks["namespace"],
        name=marks["name"],
        body=body,
        noted=now,
        namespace_uid=namespace_uid,
    )


def _avoiding(affinity: Mapping[str, Any], hostname: str) -> Object:
    """An affinity that also rules the node out; terms are alternatives, so each of them must."""
    of_nodes = dict(affinity.get("nodeAffinity") or {})
    terms = (of_nodes.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    of_nodes[_REQUIRED] = {"nodeSelectorTerms": [_without(term, hostname) for term in terms]}
    return {**affinity, "nodeAffinity": of_nodes}


def _without(term: Mapping[str, Any], hostname: str) -> Object:
    rule = {"key": HOSTNAME, "operator": "NotIn", "values": [hostname]}
    expressions = [one for one in term.get("matchExpressions") or [] if one != rule]
    return {**term, "matchExpressions": [*expressions, rule]}


def on_trial(manifest: PodNote) -> Object:
    """The manifest with a generated name, for a dry run of its creation."""
    body: Mapping[str, Any] = manifest.body
    kept = {name: value for name, value in body["metadata"].items() if name != "name"}
    return {**manifest.body, "metadata": {**kept, "generateName": f"{manifest.name[:200]}-"}}


def is_pinned(pod: Mapping[str, Any], node: str, hostname: str) -> bool:
    """Whether the pod's node selector or affinity allows only this node."""
    spec = pod["spec"]
    if (spec.get("nodeSelector") or {}).get(HOSTNAME) == hostname:
        return True
    of_nodes = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (of_nodes.get(_REQUIRED) or {}).get("nodeSelectorTerms") or []
    return bool(terms) and all(_only_here(term, node, hostname) for term in terms)


def _only_here(term: Mapping[str, Any], node: str, hostname: str) -> bool:
    rules = [(HOSTNAME, hostname, one) for one in term.get("matchExpressions") or []]
    rules += [("metadata.name", node, one) for one in term.get("matchFields") or []]
    return any(
        one["key"] == key and one["operator"] == "In" and one.get("values") == [here]
        for key, here, one in rules
    )


def is_leaving(object: Mapping[str, Any]) -> bool:
    """Whether a pod or a namespace is being deleted."""
    return bool(object["metadata"].get("deletionTimestamp"))


def accepted(note: PodNote, pod: Mapping[str, Any] | None) -> PodNote:
    """The note after its eviction was accepted; `pod` is the pod as it is then, None where it is gone."""
    ends = pod is not None and pod["metadata"]["uid"] == note.uid
    deletion = str(pod["metadata"].get("deletionTimestamp") or "") if pod is not None and ends else ""
    return msgspec.structs.replace(note, accepted=True, deletion=deletion or note.deletion)
