"""Filters the nodes that a pod may go to, and gives kube-scheduler's reasons against the others. Pure.

The first filter that rejects a node gives the reason; the resource filter names every resource that is short.
"""

import re
from collections.abc import Iterable
from enum import Flag, auto

import msgspec

from colocate.lab.scheduler.facts import (
    NodeRequirement,
    NodeTaint,
    PodToleration,
    SchedulableNode,
    SchedulablePod,
    Term,
)
from colocate.lab.scheduler.requests import Account

_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_KEEPS_AWAY = ("NoSchedule", "NoExecute")
_CORDON = NodeTaint("node.kubernetes.io/unschedulable", "NoSchedule")


class FilterCause(Flag):
    """Why a pod has no node: which changes of the cluster may help."""

    CORDON = auto()
    NAME = auto()
    TAINTS = auto()
    LABELS = auto()
    RESOURCES = auto()
    EXTENDER = auto()

    @classmethod
    def anything(cls) -> "FilterCause":
        return ~cls(0)


class Rejection(msgspec.Struct, frozen=True):
    """Why a node was rejected."""

    reasons: tuple[str, ...]
    cause: FilterCause
    curable: bool = False
    """Whether preemption on the node might help."""


_CORDONED = Rejection(("node(s) were unschedulable",), FilterCause.CORDON)
_OTHER_NAME = Rejection(("node(s) didn't match the requested node name",), FilterCause.NAME)
_OTHER_LABELS = Rejection(("node(s) didn't match Pod's node affinity/selector",), FilterCause.LABELS)


def check(
    pod: SchedulablePod, node: SchedulableNode, account: Account, ignored: frozenset[str] = frozenset()
) -> Rejection | None:
    """Why the pod may not go to the node; None where it may. `ignored` resources are not counted."""
    if node.unschedulable and not _tolerated(pod.tolerations, _CORDON):
        return _CORDONED
    if pod.node_name and pod.node_name != node.name:
        return _OTHER_NAME
    if node.taints and (taint := untolerated(pod.tolerations, node.taints)):
        reason = f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"
        return Rejection((reason,), FilterCause.TAINTS)
    if (pod.node_selector or pod.required_terms is not None) and not selects(pod, node):
        return _OTHER_LABELS
    return room(pod, node, account, ignored)


def untolerated(tolerations: Iterable[PodToleration], taints: Iterable[NodeTaint]) -> NodeTaint | None:
    """The first taint that keeps the pod away."""
    for taint in taints:
        if taint.effect in _KEEPS_AWAY and not _tolerated(tolerations, taint):
            return taint
    return None


def _tolerated(tolerations: Iterable[PodToleration], taint: NodeTaint) -> bool:
    return any(toleration.tolerates(taint) for toleration in tolerations)


def selects(pod: SchedulablePod, node: SchedulableNode) -> bool:
    """Whether a node has the labels that a pod requires."""
    labels = node.labels
    if any(labels.get(key) != value for key, value in pod.node_selector.items()):
        return False
    return pod.required_terms is None or any(matches(term, node) for term in pod.required_terms)


def matches(term: Term, node: SchedulableNode) -> bool:
    """Whether a node meets every requirement of a term."""
    if not term.match_expressions and not term.match_fields:
        return False
    return all(_meets(one, node.labels.get(one.key)) for one in term.match_expressions) and all(
        one.key == "metadata.name" and one.operator in ("In", "NotIn") and _meets(one, node.name)
        for one in term.match_fields
    )


def _meets(wanted: NodeRequirement, found: str | None) -> bool:
    match wanted.operator:
        case "In":
            return found is not None and found in wanted.values
        case "NotIn":
            return found is None or found not in wanted.values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt" | "Lt":
            return found is not None and _compares(wanted, found)
    return False


def _compares(wanted: NodeRequirement, found: str) -> bool:
    if len(wanted.values) != 1 or not _INTEGER.fullmatch(found) or not _INTEGER.fullmatch(wanted.values[0]):
        return False
    bound = int(wanted.values[0])
    return int(found) > bound if wanted.operator == "Gt" else int(found) < bound


def room(
    pod: SchedulablePod, node: SchedulableNode, account: Account, ignored: frozenset[str] = frozenset()
) -> Rejection | None:
    """The rejection of a node that lacks room for the pod; None where it has enough."""
    short: list[str] = []
    curable = True
    if account.pods >= node.pods:
        short.append("Too many pods")
        curable = node.pods > 0
    offered, requested = node.allocatable, account.requested
    for name, amount in pod.requests.amounts.items():
        whole = offered.get(name, 0)
        if amount > whole - requested.get(name, 0) and name not in ignored:
            short.append(f"Insufficient {name}")
            # Preemption does not help a pod that requests more than the whole node.
            curable = curable and amount <= whole
    return Rejection(tuple(short), FilterCause.RESOURCES, curable) if short else None
