"""Reports what the memory part does: log, metrics, and events on pods and the node.

An event on a pod is recorded when an action is new for that pod, not at every turn.
"""

from collections.abc import Iterable, Sequence

from colocate import telemetry
from colocate.memory import (
    Action,
    ActionOutcome,
    ActionResult,
    BlockPlan,
    Demote,
    Ease,
    Evict,
    MemoryDecision,
    MovePages,
    PodAction,
    PodRef,
    Reclaim,
    Recreate,
    RestoreLimit,
    ReturnPages,
    Rung,
    Throttle,
    Unthrottle,
    height,
)
from colocate.memory.agent.cluster_view import ClusterView
from colocate.memory.agent.executor import UNCHANGED
from colocate.memory.agent.pod_moves import MOVE_FAILED
from colocate.memory.agent.report import MemoryReport, evictor_binding
from colocate.memory.agent.roster import IdentityCollision
from colocate.model.figures import count, some
from colocate.model.memory import PodUid
from colocate.telemetry import MEMORY_ACTIONS, MEMORY_BLOCKS, MEMORY_BYTES, MEMORY_RUNG, Event

_REASONS: dict[type[Action], tuple[str, str]] = {
    Reclaim: ("ColocationMemoryReclaimed", "ColocationMemoryReclaimFailed"),
    RestoreLimit: ("ColocationMemoryRestored", "ColocationMemoryRestoreFailed"),
    Throttle: ("ColocationMemoryThrottled", "ColocationMemoryThrottleFailed"),
    Ease: ("ColocationMemoryEased", "ColocationMemoryEaseFailed"),
    Unthrottle: ("ColocationMemoryRestored", "ColocationMemoryRestoreFailed"),
    MovePages: ("ColocationMemoryMovedFar", "ColocationMemoryMoveFarFailed"),
    Demote: ("ColocationMemoryMovedFar", "ColocationMemoryMoveFarFailed"),
    ReturnPages: ("ColocationMemoryReturned", "ColocationMemoryReturnFailed"),
    Evict: ("ColocationMemoryEvicted", "ColocationMemoryEvictionFailed"),
    Recreate: ("ColocationMemoryMovedElsewhere", MOVE_FAILED),
}
"""By kind of action, the reasons of the events on its pod: on success, and on failure."""
_WARNINGS = (Evict, Recreate)

_COLLISION = "ColocationMemoryIdentityCollision"
_COLLISION_AGAIN = 600.0
"""Seconds between two events of the node about collisions, which any tenant can cause."""
_MOST_COLLISIONS = 10
"""Largest number of collisions of a turn that are reported one by one."""


class MemoryNotices:
    """Reports each fact once, and remembers which."""

    def __init__(self, cluster: ClusterView, resource: str) -> None:
        self._cluster = cluster
        self._resource = resource
        self._log = telemetry.logger(resource=resource)
        self._told: dict[PodUid, tuple[type[Action], ActionResult]] = {}
        self._rung: Rung | None = None
        self._silent: frozenset[str] = frozenset()
        self._lost: frozenset[str] = frozenset()
        self._collisions: frozenset[str] = frozenset()
        self._collision_told: float | None = None
        self._without_eviction: frozenset[str] = frozenset()

    def turn(self, decision: MemoryDecision, report: MemoryReport) -> None:
        """Report a decision, before it is carried out."""
        self._tell_blocks(decision.plan.blocks)
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

    def plan(self, decision: MemoryDecision) -> None:
        """Log what an agent with --dry-run would do."""
        blocks = decision.plan.blocks
        for change, ids in (("Withdraw", blocks.withdrawn), ("Publish", blocks.offered)):
            if ids:
                self._log.info(
                    Event.MEMORY_WOULD_ACT, action=change, pod="", blocks=len(ids), why=blocks.reason
                )
        for action in decision.plan.actions:
            self._log.info(
                Event.MEMORY_WOULD_ACT,
                action=type(action).__name__,
                pod=str(action.pod) if isinstance(action, PodAction) else "",
                why=action.reason,
            )

    def outcomes(self, outcomes: Iterable[ActionOutcome]) -> None:
        """Report outcomes of actions."""
        for outcome in outcomes:
            if outcome.message == UNCHANGED:
                continue
            kind = type(outcome.action)
            MEMORY_ACTIONS.labels(self._resource, kind.__name__, str(outcome.result)).inc()
            log = (
                self._log.info
                if outcome.result in (ActionResult.DONE, ActionResult.GONE)
                else self._log.warning
            )
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
        """Report each pod once that should be created again and cannot be."""
        for why in sorted(set(lost) - self._lost):
            self._cluster.tell_node("ColocationMemoryPodLost", f"{why[:1].upper()}{why[1:]}.", warning=True)
        self._lost = frozenset(lost)

    def collisions(self, collisions: Sequence[IdentityCollision], at: float) -> None:
        """Report pods that claim to be another pod: each once while it lasts, by an event on the pod and in the log;
        now and then by one event of the node, since these are limited."""
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

    def _tell_pod(self, action: PodAction, outcome: ActionOutcome) -> None:
        uid, what = action.pod.uid, (type(action), outcome.result)
        if type(action) not in _REASONS or outcome.result is ActionResult.GONE or self._told.get(uid) == what:
            return
        self._told[uid] = what
        done, failed = _REASONS[type(action)]
        if outcome.result is ActionResult.DONE:
            self._cluster.tell_pod(action.pod, done, action.reason, warning=isinstance(action, _WARNINGS))
        else:
            message = f"{type(action).__name__}: {outcome.result}, {outcome.message}. {action.reason}"
            self._cluster.tell_pod(action.pod, failed, message, warning=True)

    def _tell_blocks(self, plan: BlockPlan) -> None:
        for what, ids, reason in (
            ("withdrawn", plan.withdrawn, "ColocationMemoryWithdrawn"),
            ("offered", plan.offered, "ColocationMemoryOffered"),
        ):
            if ids:
                self._log.info(Event.MEMORY_BLOCKS_CHANGED, change=what, blocks=len(ids), why=plan.reason)
                blocks = f"{count(len(ids), 'block')} of {self._resource}"
                self._cluster.tell_node(reason, f"{blocks} {what} ({some(ids)}). {plan.reason}")

    def _tell_rung(self, decision: MemoryDecision) -> None:
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
