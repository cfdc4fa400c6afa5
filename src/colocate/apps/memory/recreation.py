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
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    of_nodes = dict(affinity.get("nodeAffinity") or {})
    terms = (of_nodes.get(required) or {}).get("nodeSelectorTerms") or [{}]
    of_nodes[required] = {"nodeSelectorTerms": [_without(term, hostname) for term in terms]}
    return {**affinity, "nodeAffinity": of_nodes}


def _without(term: Mapping[str, Any], hostname: str) -> Object:
    rule = {"key": HOSTNAME, "operator": "NotIn", "values": [hostname]}
    expressions = [one for one in term.get("matchExpressions") or [] if one != rule]
    return {**term, "matchExpressions": [*expressions, rule]}


def same_pod(pod: Mapping[str, Any], manifest: Manifest) -> bool:
    """Whether a pod of that name is still the one that was to leave."""
    return bool(pod["metadata"]["uid"] == manifest.uid)


def is_leaving(pod: Mapping[str, Any]) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))
