"""The ledger: pods that are on a node, or on their way there, and that its samples do not show yet.

kube-scheduler does not tell an extender which node it chose. The extender knows which nodes it scored best for a pod,
and later sees the pod bound. In between, the pod counts on those best nodes, in equal shares; at the binding it is
entered on its node; and it leaves when a sample's window lies wholly after the binding, when it has been there
too long, or when the pod ends. A caller could make up pods that the API server has not shown: only a few such pods
of one caller count at a time. Time is an argument.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set

import msgspec

from colocate.load.demand import Demand
from colocate.load.settings import LedgerSettings
from colocate.model.load import NOTHING, Amount, PodUsage

WHOLE = 720_720
"""A whole pod in parts that divide evenly among up to 16 nodes, so that sums are exact in any order."""


class LedgerEntry(msgspec.Struct, frozen=True):
    """One pod on one node, or its share of it."""

    uid: str
    since: float
    estimate: Amount
    packing_cpu: int
    share: int = WHOLE
    prod: bool = False
    request: Amount = NOTHING
    """The request of an assumed pod; that of a bound pod counts with the pods of its node."""
    limit: Amount = NOTHING
    """The limit of an assumed pod."""


class Assumption(msgspec.Struct, frozen=True):
    """A pod that was judged and not yet seen bound, and the nodes that it may go to."""

    uid: str
    since: float
    nodes: tuple[str, ...]
    demand: Demand
    vouched_by: str = ""
    """The caller that asked about the pod; empty once the API server shows it."""


class Unseen(msgspec.Struct, frozen=True):
    """Sums over a node's entries."""

    amount: Amount = NOTHING
    prod: Amount = NOTHING
    packing_cpu: int = 0
    share: int = 0
    requested: Amount = NOTHING
    """The requests of pods that are assumed here."""
    limits: Amount = NOTHING
    """The limits of pods that are assumed here."""
    assumed: Amount = NOTHING
    """The estimates of pods that are assumed here; `amount` contains them, too."""

    @property
    def pods(self) -> float:
        return self.share / WHOLE


NONE_UNSEEN = Unseen()


class Ledger:
    """Entries by node. Every change returns the nodes that it touched."""

    def __init__(self, settings: LedgerSettings) -> None:
        self._settings = settings
        self._bound: dict[str, dict[str, LedgerEntry]] = {}
        self._assumed: dict[str, dict[str, LedgerEntry]] = {}
        self._nodes: dict[str, str] = {}
        self._assumptions: dict[str, Assumption] = {}
        """Ordered by time; when the clock is set back, all of them are."""
        self._vouched: Counter[str] = Counter()
        """By caller, the number of its assumptions."""
        self._next_expiry = float("inf")
        self._next_bound_expiry = float("inf")

    def __len__(self) -> int:
        return len(self._nodes) + len(self._assumptions)

    def bind(self, uid: str, node: str, demand: Demand, bound_at: float) -> set[str]:
        """The pod is on its node; what was assumed of it is over."""
        touched = self.end(uid)
        entry = LedgerEntry(uid, bound_at, demand.estimate, demand.packing_cpu, prod=demand.prod)
        self._bound.setdefault(node, {})[uid] = entry
        self._nodes[uid] = node
        if self._settings.expiry:
            self._next_bound_expiry = min(self._next_bound_expiry, bound_at + self._settings.expiry)
            self._next_expiry = min(self._next_expiry, self._next_bound_expiry)
        return touched | {node}

    def assume(
        self, uid: str, nodes: Sequence[str], demand: Demand, now: float, vouched_by: str = ""
    ) -> set[str]:
        """Count a judged pod on its best nodes. It counts nowhere if these are too many, or if only a caller vouches
        for it and already does so for too many pods."""
        if uid in self._nodes or not uid:
            return set()
        touched = self.withdraw(uid)
        if not 0 < len(nodes) <= min(self._settings.assumed_nodes, 16):
            return touched
        if vouched_by:
            if self._vouched[vouched_by] >= self._settings.vouched_pods:
                return touched
            self._vouched[vouched_by] += 1
        self._assumptions[uid] = Assumption(uid, now, tuple(nodes), demand, vouched_by)
        of = len(nodes)
        entry = LedgerEntry(
            uid,
            now,
            _part(demand.estimate, of),
            demand.packing_cpu // of,
            WHOLE // of,
            demand.prod,
            _part(demand.request, of),
            _part(demand.limit, of),
        )
        for node in nodes:
            self._assumed.setdefault(node, {})[uid] = entry
        self._next_expiry = min(self._next_expiry, now + self._settings.assumed_expiry)
        return touched | set(nodes)

    def withdraw(self, uid: str) -> set[str]:
        """Drop what was assumed of the pod; a bound pod stays."""
        assumption = self._assumptions.pop(uid, None)
        if assumption is None:
            return set()
        if assumption.vouched_by:
            self._vouched[assumption.vouched_by] -= 1
            if not self._vouched[assumption.vouched_by]:
                del self._vouched[assumption.vouched_by]
        for node in assumption.nodes:
            _drop(self._assumed, node, uid)
        return set(assumption.nodes)

    def end(self, uid: str) -> set[str]:
        """The pod is gone, or never came."""
        node = self._nodes.pop(uid, None)
        touched = self.withdraw(uid)
        if node is None:
            return touched
        _drop(self._bound, node, uid)
        return touched | {node}

    def shows(self, node: str, sampled_at: float, usage: Callable[[str], PodUsage | None]) -> list[str]:
        """The pods that a sample of that time shows in full; they leave."""
        begins = sampled_at - self._settings.window
        shown = [
            entry.uid
            for entry in self._bound.get(node, {}).values()
            if entry.since <= begins
            and (not self._settings.wait_for_pod_usage or usage(entry.uid) is not None)
        ]
        for uid in shown:
            self.end(uid)
        return shown

    def expire(self, now: float) -> set[str]:
        """Remove entries that have been here too long. Costs nothing while there are none."""
        if now < self._next_expiry:
            return set()
        touched: set[str] = set()
        while (first := self._first_assumption) and now >= first.since + self._settings.assumed_expiry:
            touched |= self.end(first.uid)
        if self._settings.expiry and now >= self._next_bound_expiry:
            for entry in [entry for of_node in self._bound.values() for entry in of_node.values()]:
                if now >= entry.since + self._settings.expiry:
                    touched |= self.end(entry.uid)
            self._next_bound_expiry = min(self._bound_expiries(), default=float("inf"))
        self._look_ahead()
        return touched

    def set_back(self, now: float) -> None:
        """The clock was ahead: count entries of the future from now, or they would stay for too long."""
        for uid, assumption in self._assumptions.items():
            self._assumptions[uid] = msgspec.structs.replace(assumption, since=min(assumption.since, now))
        for of_node in (*self._bound.values(), *self._assumed.values()):
            for uid, entry in of_node.items():
                of_node[uid] = msgspec.structs.replace(entry, since=min(entry.since, now))
        self._next_bound_expiry = min(self._bound_expiries(), default=float("inf"))
        self._look_ahead()

    def assumes(self, node: str) -> bool:
        """Whether any pod is assumed there."""
        return node in self._assumed

    def unseen(self, node: str, usage: Callable[[str], PodUsage | None], *, assumed: bool = True) -> Unseen:
        """The sums over the node's entries, with or without assumed ones. Of a pod that is measured already, only the
        rest of its estimate counts."""
        bound, coming = self._bound.get(node), self._assumed.get(node) if assumed else None
        if not bound and not coming:
            return NONE_UNSEEN
        cpu = memory = prod_cpu = prod_memory = packing = share = 0
        for entry in (*(bound or {}).values(), *(coming or {}).values()):
            measured = usage(entry.uid)
            used = measured.amount if measured else NOTHING
            missing_cpu = max(0, entry.estimate.cpu - used.cpu)
            missing_memory = max(0, entry.estimate.memory - used.memory)
            cpu += missing_cpu
            memory += missing_memory
            # A bound prod pod that is not measured counts in PodTotals.prod_guessed.
            if entry.prod and (entry.uid in self._assumptions or (measured is not None and measured.prod)):
                prod_cpu += missing_cpu
                prod_memory += missing_memory
            packing += entry.packing_cpu
            share += entry.share
        there = (coming or {}).values()
        return Unseen(
            Amount(cpu, memory),
            Amount(prod_cpu, prod_memory),
            packing,
            share,
            _sum(entry.request for entry in there),
            _sum(entry.limit for entry in there),
            _sum(entry.estimate for entry in there),
        )

    @property
    def bound(self) -> tuple[str, ...]:
        """The pods that are entered on their nodes."""
        return tuple(self._nodes)

    @property
    def nodes(self) -> Set[str]:
        """The nodes that have bound pods in the ledger."""
        return self._bound.keys()

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        return tuple(self._assumptions.values())

    @property
    def _first_assumption(self) -> Assumption | None:
        return next(iter(self._assumptions.values()), None)

    def _look_ahead(self) -> None:
        """Note when the next entry expires, so that a burst of expiries does not scan all entries each time."""
        first = self._first_assumption
        assumed = first.since + self._settings.assumed_expiry if first else float("inf")
        self._next_expiry = min(assumed, self._next_bound_expiry)

    def _bound_expiries(self) -> Iterable[float]:
        if self._settings.expiry:
            for of_node in self._bound.values():
                for entry in of_node.values():
                    yield entry.since + self._settings.expiry


def _sum(amounts: Iterable[Amount]) -> Amount:
    cpu = memory = 0
    for amount in amounts:
        cpu += amount.cpu
        memory += amount.memory
    return Amount(cpu, memory)


def _part(amount: Amount, of: int) -> Amount:
    return Amount(amount.cpu // of, amount.memory // of)


def _drop(entries: dict[str, dict[str, LedgerEntry]], node: str, uid: str) -> None:
    of_node = entries.get(node)
    if of_node is not None and of_node.pop(uid, None) is not None and not of_node:
        del entries[node]
