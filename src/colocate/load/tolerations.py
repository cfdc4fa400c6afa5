"""Which nodes take a pod at all, by their taints and its tolerations. Selectors and affinities are not looked at."""

from collections.abc import Mapping, Sequence

import msgspec

from colocate.model.load import Access, NodeFacts, Taint

_CORDON = Taint("node.kubernetes.io/unschedulable", "NoSchedule")
"""As which a pod tolerates that a node is cordoned."""


class Toleration(msgspec.Struct, frozen=True):
    """As a pod's spec has it: what is empty is anything, and a value counts unless it is enough that there is one."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        if self.key not in ("", taint.key) or self.effect not in ("", taint.effect):
            return False
        return self.operator == "Exists" or (self.operator in ("", "Equal") and self.value == taint.value)


class ClosedNode(msgspec.Struct, frozen=True):
    """A node that does not take the pod."""

    node: str
    reason: str


def open_to(
    tolerations: Sequence[Toleration], nodes: Mapping[str, NodeFacts]
) -> tuple[list[str], tuple[ClosedNode, ...]]:
    """The nodes that take a pod with these tolerations, and those that do not."""
    reasons = {name: _why_closed(node.access, tolerations) for name, node in nodes.items()}
    closed = tuple(ClosedNode(name, reason) for name, reason in reasons.items() if reason)
    return [name for name, reason in reasons.items() if not reason], closed


def _why_closed(access: Access, tolerations: Sequence[Toleration]) -> str:
    for taint in (*((_CORDON,) if access.cordoned else ()), *access.taints):
        if not any(toleration.tolerates(taint) for toleration in tolerations):
            value = f"={taint.value}" if taint.value else ""
            cordoned = taint.key == _CORDON.key
            return (
                "it is cordoned"
                if cordoned
                else f"the pod does not tolerate its taint {taint.key}{value}:{taint.effect}"
            )
    return ""
