"""Moves bare pods: evicts them here, and creates them again on another node.

A pod is evicted only after a dry run has shown that the API server would accept it again, and after its note is
stored. From then on the cluster's state decides (`recreation`), so that a new process can finish a move after a kill:
a pod that has ended is created; one that is ending is waited for; if it was never evicted, or its owner deleted it,
the note is dropped. A note that cannot be removed is never used again, and the agent tries to remove it at every
turn.
"""

from collections.abc import Callable
from typing import Any

from colocate import telemetry
from colocate.clock import Clock
from colocate.cluster.errors import AlreadyExists, ClusterError, Forbidden, Invalid, NotFound
from colocate.cluster.eviction import Evicted, EvictionSettings, evict
from colocate.cluster.resources import NAMESPACES, PODS
from colocate.errors import UserError
from colocate.memory import ActionOutcome, ActionResult, Evict, PodRef, Recreate
from colocate.memory.agent.cluster_view import ClusterView
from colocate.memory.agent.recreation import (
    NoteFate,
    NoteVerdict,
    accepted,
    elsewhere,
    is_leaving,
    is_pinned,
    on_trial,
    verdict,
)
from colocate.memory.agent.store import MemoryStore, PodNote
from colocate.model.memory import PodUid
from colocate.telemetry import Event

EXPIRY = 3600.0
"""Seconds for which a note can be used, by default."""
MOVE_FAILED = "ColocationMemoryMoveElsewhereFailed"
"""The reason of events about a pod that left and was not created again."""

_ONCE = EvictionSettings(deadline=0.0)
"""Try once; the ladder requests the eviction again itself."""

_RESULTS = {
    Evicted.EVICTED: ActionResult.DONE,
    Evicted.GONE: ActionResult.GONE,
    Evicted.BLOCKED: ActionResult.BLOCKED,
    Evicted.REFUSED: ActionResult.REFUSED,
    Evicted.UNREACHABLE: ActionResult.UNREACHABLE,
}


class PodMoves:
    """The moves of one node's pods; a note can be used for `expiry` seconds."""

    def __init__(
        self, cluster: ClusterView, store: MemoryStore, clock: Clock, expiry: float = EXPIRY
    ) -> None:
        self.expiry = expiry
        self._cluster = cluster
        self._store = store
        self._clock = clock
        self._seen: dict[PodUid, float] = {}
        """When this process first saw each note, so that jumps of the wall clock do not make it younger."""
        self._accepted: dict[PodUid, PodNote] = {}
        """Notes of accepted evictions, as they should be on disk."""
        self._over: dict[PodUid, Callable[[PodUid], None]] = {}
        """Finished moves whose note may still exist, with the function that removes it."""
        self._told: dict[PodUid, str] = {}

    async def begin(self, action: Recreate) -> ActionOutcome:
        """Store the pod's note, then evict it; `finish` creates it again. FAILED where that would not be possible."""
        pod = action.pod
        try:
            found = await self._pod(pod.name, pod.namespace)
            if found is None or found["metadata"]["uid"] != pod.uid:
                return ActionOutcome(action, ActionResult.GONE)
            if is_leaving(found):
                return ActionOutcome(action, ActionResult.GONE, "it is already being deleted")
            hostname = self._cluster.node.hostname if self._cluster.node else action.avoid
            if is_pinned(found, self._cluster.node_name, hostname):
                return ActionOutcome(
                    action, ActionResult.FAILED, "its own node selector or affinity allows no other node"
                )
            namespace: dict[str, Any] = await self._cluster.client.get(NAMESPACES, pod.namespace)
            note = elsewhere(found, hostname, namespace["metadata"]["uid"], self._clock.time())
            await self._try_creation(note)
        except (Forbidden, Invalid, NotFound) as error:
            return ActionOutcome(action, ActionResult.FAILED, f"it could not be created again: {error}")
        except (ClusterError, UserError) as error:
            return ActionOutcome(action, ActionResult.UNREACHABLE, str(error))
        try:
            self._store.remember(note)
        except OSError as error:
            self._drop(note)
            why = self._store.why_not(error)
            return ActionOutcome(
                action, ActionResult.BLOCKED, f"it cannot be recorded before it leaves: {why}"
            )
        self._over.pop(pod.uid, None)
        outcome = await request_eviction(self._cluster, action)
        if outcome.result is ActionResult.DONE:
            await self._note_accepted(note)
        elif outcome.result is not ActionResult.UNREACHABLE:
            # GONE: it existed a moment ago, so another client has deleted it.
            self._drop(note)
        return outcome

    async def finish(self, busy: Callable[[PodUid], bool]) -> None:
        """Create the pods that have ended, except those with a running job; failures are reported and tried again."""
        for note in self._store.moves().manifests:
            if busy(note.uid):
                continue
            try:
                await self._finish(note)
            except (ClusterError, UserError) as error:
                self._tell_unfinished(note, str(error))
            except OSError as error:
                self._tell_unfinished(note, self._store.why_not(error))

    async def _finish(self, stored: PodNote) -> None:
        note = self._accepted.get(stored.uid, stored)
        if (remove := self._over.get(note.uid)) is not None:
            self._end(note, remove)
            return
        try:
            pod = await self._pod(note.name, note.namespace)
            namespace = None if pod is not None else await self._namespace(note.namespace)
        except (ClusterError, UserError) as error:
            if self._age(note) <= self.expiry:
                raise
            decided, pod = NoteVerdict(NoteFate.EXPIRE, str(error)), None
        else:
            decided = verdict(note, pod, namespace, self._age(note), self.expiry)
        match decided.fate:
            case NoteFate.WAIT:
                note = note if note.accepted else accepted(note, pod)
                if note != stored:
                    self._keep(note)
            case NoteFate.CREATE:
                await self._create(note)
            case NoteFate.DROP:
                telemetry.logger().info(
                    Event.MEMORY_MOVE_DROPPED, pod=f"{note.namespace}/{note.name}", why=decided.why
                )
                self._end(note, self._store.forget)
            case NoteFate.EXPIRE:
                self._tell_expired(note, decided.why)
                self._end(note, self._store.expire)

    async def _create(self, note: PodNote) -> None:
        try:
            await self._cluster.client.create(PODS, note.body, note.namespace)
        except AlreadyExists:
            pass  # We created it before a crash, or another client did.
        telemetry.logger().info(Event.MEMORY_POD_MOVED, pod=f"{note.namespace}/{note.name}")
        self._end(note, self._store.forget)

    async def _try_creation(self, note: PodNote) -> None:
        try:
            await self._cluster.client.create(PODS, on_trial(note), note.namespace, dry_run=True)
        except Forbidden as error:
            # The pod's end will free its quota.
            if "exceeded quota" not in str(error):
                raise

    async def _pod(self, name: str, namespace: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = await self._cluster.client.get(PODS, name, namespace)
        except NotFound:
            return None
        return found

    async def _namespace(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = await self._cluster.client.get(NAMESPACES, name)
        except NotFound:
            return None
        return found

    async def _note_accepted(self, note: PodNote) -> None:
        """Note that the eviction ended the pod, not its owner."""
        self._accepted[note.uid] = accepted(note, None)
        try:
            ending = await self._pod(note.name, note.namespace)
        except (ClusterError, UserError):
            ending = None
        try:
            self._keep(accepted(note, ending))
        except OSError as error:
            self._tell_unfinished(note, self._store.why_not(error))

    def _keep(self, note: PodNote) -> None:
        self._accepted[note.uid] = note
        self._store.remember(note)

    def _drop(self, note: PodNote) -> None:
        try:
            self._end(note, self._store.forget)
        except OSError as error:
            self._tell_unfinished(note, self._store.why_not(error))

    def _end(self, note: PodNote, remove: Callable[[PodUid], None]) -> None:
        """Finish a move; OSError where its note cannot be removed yet."""
        self._over[note.uid] = remove
        remove(note.uid)
        for known in (self._over, self._seen, self._accepted, self._told):
            known.pop(note.uid, None)

    def _age(self, note: PodNote) -> float:
        seen = self._seen.setdefault(note.uid, self._clock.monotonic())
        return max(self._clock.time() - note.noted, self._clock.monotonic() - seen)

    def _tell_unfinished(self, note: PodNote, why: str) -> None:
        telemetry.logger().warning(
            Event.MEMORY_MOVE_UNFINISHED, pod=f"{note.namespace}/{note.name}", reason=why
        )
        if note.uid not in self._over and self._told.get(note.uid) != why:
            message = f"It left {self._cluster.node_name} and is not created again yet; the agent tries at every turn"
            self._tell(note, f"{message}: {why}")
        self._told[note.uid] = why

    def _tell_expired(self, note: PodNote, why: str) -> None:
        telemetry.logger().error(Event.MEMORY_MOVE_EXPIRED, pod=f"{note.namespace}/{note.name}", why=why)
        message = (
            f"It left {self._cluster.node_name} and is not created again; create it if you still want it"
        )
        self._tell(note, f"{message}: {why}")

    def _tell(self, note: PodNote, message: str) -> None:
        pod = PodRef(note.uid, note.namespace, note.name)
        self._cluster.tell_pod(pod, MOVE_FAILED, message, warning=True)
        self._cluster.tell_node(MOVE_FAILED, f"{pod}: {message}", warning=True)


async def request_eviction(cluster: ClusterView, action: Evict | Recreate) -> ActionOutcome:
    """Request the eviction of this pod once; a newer pod of the same name is not evicted."""
    pod = action.pod
    try:
        done = await evict(cluster.client, pod.name, pod.namespace, pod.uid, settings=_ONCE)
    except UserError as error:
        # A credential that cannot be read now may be there again in a moment.
        return ActionOutcome(action, ActionResult.UNREACHABLE, str(error))
    return ActionOutcome(action, _RESULTS[done.outcome], done.message)
