"""What the memory part tells of itself: log, metrics, and events on pods and the node for every rung.

An event is told when something is done to a pod that was not done to it before, not at every turn.
"""

from collections.abc import Iterable, Sequence

from colocate import telemetry
from colocate.apps.memory.cluster_view import ClusterView
from colocate.apps.memory.executor import UNCHANGED
from colocate.apps.memory.report import Report, evictor_binding
from colocate.apps.memory.roster import Collision
from colocate.memory.actions import (
    Action,
    Demote,
    Ease,
    Evict,
    MovePages,
    PodAction,
    PodRef,
    Publish,
    Reclaim,
    Recreate,
    RestoreLimit,
    ReturnPages,
    Throttle,
    Unthrottle,
    Withdraw,
)
from colocate.memory.decide import Decision
from colocate.memory.facts import Outcome, Result
from colocate.memory.figures import count, some
from colocate.memory.rung import Rung, height
from colocate.model.memory import PodUid
from colocate.telemetry import MEMORY_ACTIONS, MEMORY_BLOCKS, MEMORY_BYTES, MEMORY_RUNG, Event

_REASONS: dict[type[Action], str] = {
    Reclaim: "ColocationMemoryReclaimed",
    RestoreLimit: "ColocationMemoryRestored",
    Throttle: "ColocationMemoryThrottled",
    Ease: "ColocationMemoryEased",
    Unthrottle: "ColocationMemoryRestored",
    MovePages: "ColocationMemoryMovedFar",
    Demote: "ColocationMemoryMovedFar",
    ReturnPages: "ColocationMemoryReturned",
    Evict: "ColocationMemoryEvicted",
    Recreate: "ColocationMemoryMovedElsewhere",
}
_WARNINGS = (Evict, Recreate)

_COLLISION = "ColocationMemoryIdentityCollision"
_COLLISION_AGAIN = 600.0
"""Seconds between two events of the node about collisions, which anybody can make."""
_MOST_COLLISIONS = 10
"""Of one turn, that are told one by one."""


class Teller:
    """Remembers what was told."""

    def __init__(self, cluster: ClusterView, resource: str) -> None:
        self._cluster = cluster
        self._resource = resource
        self._log = telemetry.logger(resource=resource)
        self._told: dict[PodUid, tuple[type[Action], Result]] = {}
        self._rung: Rung | None = None
        self._silent: frozenset[str] = frozenset()
        self._lost: frozenset[str] = frozenset()
        self._collisions: frozenset[str] = frozenset()
        self._collision_told: float | None = None
        self._without_eviction: frozenset[str] = frozenset()

    def turn(self, decision: Decision, report: Report) -> None:
        """A decision, before it is carried out."""
        for action in decision.plan.actions:
            if isinstance(action, Withdraw | Publish):
                self._tell_blocks(action)
        self._tell_rung(decision)
        self._tell_silence(report.silent)
        self._tell_rights(report.without_eviction)
        self._told = {uid: told for uid, told in self._told.items() if uid in decision.state.holders}
        for part, size in report.bar.parts():
            MEMORY_BYTES.labels(self._resource, part).set(size)
        MEMORY_BYTES.labels(self._resource, "owed").set(report.debt)
        MEMORY_BYTES.labels(self._resource, "due").set(report.due)
        for state, blocks in (
            ("free", report.offered),
            ("held", report.held),
            ("withdrawn", report.withdrawn),
        ):
            MEMORY_BLOCKS.labels(self._resource, state).set(blocks)
        MEMORY_RUNG.labels(self._resource).set(height(decision.state.ladder.rung))

    def plan(self, decision: Decision) -> None:
        """What would be done, of an agent that does nothing."""
        for action in decision.plan.actions:
            self._log.info(
                Event.MEMORY_WOULD_ACT,
                action=type(action).__name__,
                pod=str(action.pod) if isinstance(action, PodAction) else "",
                why=action.reason,
            )

    def outcomes(self, outcomes: Iterable[Outcome]) -> None:
        """What became of actions."""
        for outcome in outcomes:
            if outcome.message == UNCHANGED:
                continue
            kind = type(outcome.action)
            MEMORY_ACTIONS.labels(self._resource, kind.__name__, str(outcome.result)).inc()
            log = self._log.info if outcome.result in (Result.DONE, Result.GONE) else self._log.warning
            pod = outcome.action.pod if isinstance(outcome.action, PodAction) else None
            log(
                Event.MEMORY_ACTED,
                action=kind.__name__,
                pod=str(pod or ""),
                result=str(outcome.result),
                message=outcome.message,
                why=outcome.action.reason,
            )
            if isinstance(outcome.action, PodAction):
                self._tell_pod(outcome.action, outcome)

    def lost(self, lost: tuple[str, ...]) -> None:
        """Pods that were to be created again and cannot be, each once."""
        for why in sorted(set(lost) - self._lost):
            self._cluster.tell_node("ColocationMemoryPodLost", f"{why[:1].upper()}{why[1:]}.", warning=True)
        self._lost = frozenset(lost)

    def collisions(self, collisions: Sequence[Collision], at: float) -> None:
        """Pods that claim to be another: each once while it lasts, in an event of its own and the log; now and then
        in one of the node, for whose events there is only so much room."""
        known, self._collisions = self._collisions, frozenset(map(str, collisions))
        new = [each for each in collisions if str(each) not in known]
        for each in new[:_MOST_COLLISIONS]:
            effect = "the agent ignores the annotation"
            self._log.warning(Event.MEMORY_IDENTITY_COLLISION, reason=str(each), effect=effect, new=len(new))
        claims = [(pod, each) for each in new for pod in each.claimants]
        for pod, each in claims[:_MOST_COLLISIONS]:
            about = PodRef(pod.uid, pod.metadata.namespace, pod.metadata.name)
            self._cluster.tell_pod(about, _COLLISION, f"Ignored: {each}.", warning=True)
        long_ago = self._collision_told is None or at - self._collision_told >= _COLLISION_AGAIN
        if new and long_ago:
            self._collision_told = at
            self._cluster.tell_node(_COLLISION, f"Ignored: {new[0]}.", warning=True)

    def _tell_pod(self, action: PodAction, outcome: Outcome) -> None:
        uid, what = action.pod.uid, (type(action), outcome.result)
        if type(action) not in _REASONS or outcome.result is Result.GONE or self._told.get(uid) == what:
            return
        self._told[uid] = what
        reason = _REASONS[type(action)]
        if outcome.result is Result.DONE:
            self._cluster.tell_pod(action.pod, reason, action.reason, warning=isinstance(action, _WARNINGS))
        else:
            message = f"{type(action).__name__}: {outcome.result}, {outcome.message}. {action.reason}"
            self._cluster.tell_pod(action.pod, f"{reason}Not", message, warning=True)

    def _tell_blocks(self, action: Withdraw | Publish) -> None:
        taken = isinstance(action, Withdraw)
        what = "withdrawn" if taken else "offered"
        blocks = f"{count(len(action.ids), 'block')} of {self._resource}"
        message = f"{blocks} {what} ({some(action.ids)}). {action.reason}"
        self._log.info(Event.MEMORY_BLOCKS_CHANGED, change=what, blocks=len(action.ids), why=action.reason)
        self._cluster.tell_node("ColocationMemoryWithdrawn" if taken else "ColocationMemoryOffered", message)

    def _tell_rung(self, decision: Decision) -> None:
        rung = decision.state.ladder.rung
        if rung is self._rung:
            return
        up = height(rung) > height(self._rung)
        where = f"is on rung {rung}" if rung else "is no longer in use"
        message = " ".join((f"The ladder {where}.", *decision.plan.notes))
        self._log.info(
            Event.MEMORY_RUNG_CHANGED, rung=str(rung or ""), before=str(self._rung or ""), why=message
        )
        self._cluster.tell_node("ColocationMemoryLadder", message, warning=up and rung is not Rung.WITHDRAW)
        self._rung = rung

    def _tell_rights(self, without_eviction: tuple[str, ...]) -> None:
        for namespace in sorted(set(without_eviction) - self._without_eviction):
            self._log.warning(
                Event.MEMORY_EVICTION_FORBIDDEN,
                namespace=namespace,
                effect="the ladder reclaims from, throttles and moves its pods, but never evicts them",
                remedy=evictor_binding(namespace),
            )
        self._without_eviction = frozenset(without_eviction)

    def _tell_silence(self, silent: tuple[str, ...]) -> None:
        for why in sorted(set(silent) - self._silent):
            self._log.warning(
                Event.MEMORY_FACTS_MISSING, reason=why, effect="the agent goes on with what it knows"
            )
        self._silent = frozenset(silent)
