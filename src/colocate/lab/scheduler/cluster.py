"""The scheduler's view of the cluster: nodes and what their pods request, updated with every change."""

from colocate.lab.api.changes import Stored
from colocate.lab.scheduler.facts import SchedulableNode, SchedulablePod
from colocate.lab.scheduler.filters import FilterCause
from colocate.lab.scheduler.requests import Account


class ClusterNode:
    """A node, its account, and its pods."""

    __slots__ = ("_priorities", "account", "node", "nominated", "pods", "stored")

    def __init__(self, node: SchedulableNode, stored: Stored) -> None:
        self.node = node
        self.stored = stored
        self.account = Account()
        self.pods: dict[str, SchedulablePod] = {}
        self.nominated: dict[str, SchedulablePod] = {}
        """Pods that are nominated to this node, after others were preempted for them."""
        self._priorities: dict[int, int] = {}

    def enter(self, pod: SchedulablePod) -> None:
        self.leave(pod.uid)
        self.pods[pod.uid] = pod
        self.account.enter(pod.uid, pod.requests)
        self._priorities[pod.priority] = self._priorities.get(pod.priority, 0) + 1

    def leave(self, uid: str) -> bool:
        pod = self.pods.pop(uid, None)
        if pod is None:
            return False
        self.account.leave(uid)
        self._priorities[pod.priority] -= 1
        if not self._priorities[pod.priority]:
            del self._priorities[pod.priority]
        return True

    def has_below(self, priority: int) -> bool:
        """Whether any pod here is of a lower priority."""
        return any(one < priority for one in self._priorities)

    def account_for(self, pod: SchedulablePod) -> Account:
        """The account for a pod: nominated pods of equal or higher priority count as placed."""
        if not self.nominated:
            return self.account
        rivals = [
            one for uid, one in self.nominated.items() if uid != pod.uid and one.priority >= pod.priority
        ]
        if not rivals:
            return self.account
        account = self.account.copy()
        for one in rivals:
            account.enter(one.uid, one.requests)
        return account


class SchedulerCache:
    """All nodes, and which pod is where."""

    def __init__(self) -> None:
        self._nodes: dict[str, ClusterNode] = {}
        self._placed: dict[str, str] = {}
        self._nominated: dict[str, str] = {}
        self._assumed: set[str] = set()
        self._order: list[ClusterNode] | None = None

    @property
    def nodes(self) -> list[ClusterNode]:
        """Every node, in the order in which they came."""
        if self._order is None:
            self._order = list(self._nodes.values())
        return self._order

    def uids(self) -> set[str]:
        """Every pod that is known here."""
        return {*self._placed, *self._nominated}

    def find(self, name: str) -> ClusterNode | None:
        return self._nodes.get(name)

    def put_node(self, node: SchedulableNode, stored: Stored) -> FilterCause:
        """Add or update a node. Returns the causes that it may have cleared; a new node has no pods yet."""
        known = self._nodes.get(node.name)
        if known is None:
            known = self._nodes[node.name] = ClusterNode(node, stored)
            self._order = None
            return FilterCause.anything()
        better = improvement(known.node, node)
        known.node, known.stored = node, stored
        return better

    def drop_node(self, name: str) -> None:
        gone = self._nodes.pop(name, None)
        if gone is not None:
            self._order = None
            for uid in gone.pods:
                self._placed.pop(uid, None)

    def put_pod(self, pod: SchedulablePod) -> FilterCause:
        """Add or update a pod. Returns the causes that it may have cleared."""
        self._nominate(pod)
        if pod.is_over:
            return self._take_away(pod.uid)
        if not pod.node_name:
            return FilterCause(0) if pod.uid in self._assumed else self._take_away(pod.uid)
        self._assumed.discard(pod.uid)
        self._place(pod, pod.node_name)
        return FilterCause(0)

    def drop_pod(self, uid: str) -> FilterCause:
        """Remove a pod. Returns the causes that this may have cleared."""
        self._assumed.discard(uid)
        if (node := self._nodes.get(self._nominated.pop(uid, ""))) is not None:
            node.nominated.pop(uid, None)
        return self._take_away(uid)

    def assume(self, pod: SchedulablePod, node: str) -> None:
        """Count a pod as placed while an extender binds it."""
        self._assumed.add(pod.uid)
        self._place(pod, node)

    def forget(self, uid: str) -> FilterCause:
        """Undo `assume` for a pod that was not bound, unless it was seen bound."""
        if uid not in self._assumed:
            return FilterCause(0)
        self._assumed.discard(uid)
        return self._take_away(uid)

    def _place(self, pod: SchedulablePod, name: str) -> None:
        before = self._placed.get(pod.uid)
        if before is not None and before != name:
            self._take_away(pod.uid)
        if (node := self._nodes.get(name)) is not None:
            self._placed[pod.uid] = name
            node.enter(pod)

    def _take_away(self, uid: str) -> FilterCause:
        node = self._nodes.get(self._placed.pop(uid, ""))
        return FilterCause.RESOURCES if node is not None and node.leave(uid) else FilterCause(0)

    def _nominate(self, pod: SchedulablePod) -> None:
        wanted = "" if pod.node_name or pod.is_over else pod.nominated
        held = self._nominated.get(pod.uid, "")
        if held and held != wanted:
            del self._nominated[pod.uid]
            if (node := self._nodes.get(held)) is not None:
                node.nominated.pop(pod.uid, None)
        if wanted and (node := self._nodes.get(wanted)) is not None:
            self._nominated[pod.uid] = wanted
            node.nominated[pod.uid] = pod


def improvement(before: SchedulableNode, now: SchedulableNode) -> FilterCause:
    """The causes that a node's change may have cleared; none for a heartbeat."""
    better = FilterCause(0)
    if before.unschedulable and not now.unschedulable:
        better |= FilterCause.CORDON
    if before.taints != now.taints:
        better |= FilterCause.TAINTS
    if before.labels != now.labels:
        better |= FilterCause.LABELS
    if any(amount > before.allocatable.get(name, 0) for name, amount in now.allocatable.items()):
        better |= FilterCause.RESOURCES
    return better | FilterCause.EXTENDER if better else better
