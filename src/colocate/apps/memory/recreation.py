"""A bare pod as it is to be created again on another node: the same, with an affinity against this one. Pure."""

from collections.abc import Mapping
from typing import Any

from colocate.apps.memory.objects import HOSTNAME
from colocate.apps.memory.store import Manifest
from colocate.cluster.resources import Object

_OF_THE_SERVER = (
    *("uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"),
    *("generation", "managedFields", "selfLink"),
)
"""What the API server writes into metadata by itself."""

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

_OF_THIS_LIFE = ("nodeName", "ephemeralContainers")
"""What a spec has from being run here; the API server refuses new pods with ephemeral containers."""


def elsewhere(pod: Mapping[str, Any], hostname: str) -> Manifest:
    """The pod anew, anywhere but on the node of this host name."""
    marks = pod["metadata"]
    kept = {name: value for name, value in marks.items() if name not in _OF_THE_SERVER}
    spec = {name: value for name, value in pod["spec"].items() if name not in _OF_THIS_LIFE}
    spec["affinity"] = _avoiding(spec.get("affinity") or {}, hostname)
    body: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": kept, "spec": spec}
    return Manifest(marks["uid"], marks["namespace"], marks["name"], body)


def _avoiding(affinity: Mapping[str, Any], hostname: str) -> Object:
    """Terms are alternatives, so each of them must rule the node out."""
    of_nodes = dict(affinity.get("nodeAffinity") or {})
    terms = (of_nodes.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    of_nodes[_REQUIRED] = {"nodeSelectorTerms": [_without(term, hostname) for term in terms]}
    return {**affinity, "nodeAffinity": of_nodes}


def _without(term: Mapping[str, Any], hostname: str) -> Object:
    rule = {"key": HOSTNAME, "operator": "NotIn", "values": [hostname]}
    expressions = [one for one in term.get("matchExpressions") or [] if one != rule]
    return {**term, "matchExpressions": [*expressions, rule]}


def on_trial(manifest: Manifest) -> Object:
    """The same under a name that nobody has, for a server that is asked whether it would take it."""
    body: Mapping[str, Any] = manifest.body
    kept = {name: value for name, value in body["metadata"].items() if name != "name"}
    return {**manifest.body, "metadata": {**kept, "generateName": f"{manifest.name[:200]}-"}}


def is_pinned(pod: Mapping[str, Any], node: str, hostname: str) -> bool:
    """Whether the pod's own rules leave it this node alone."""
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


def same_pod(pod: Mapping[str, Any], manifest: Manifest) -> bool:
    """Whether a pod of that name is still the one that was to leave."""
    return bool(pod["metadata"]["uid"] == manifest.uid)


def is_leaving(pod: Mapping[str, Any]) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))
