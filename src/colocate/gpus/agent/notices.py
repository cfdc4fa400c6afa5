"""What follows from who has which GPU: events on pods, their annotations, and the end of pods that cannot start.

Seen to after every settlement, from scratch: what could not be told or written is tried again later.
"""

from collections.abc import Awaitable, Callable, Mapping

from colocate import telemetry
from colocate.clock import Clock
from colocate.gpus import (
    AnswerState,
    GpuAnswer,
    GpuAnswers,
    GpuClaim,
    GpuPod,
    GpuSettings,
    claim_of,
    counted_in_limits,
    flags_for,
)
from colocate.gpus.agent.pods import NodePods
from colocate.gpus.agent.standing import NodeStanding
from colocate.gpus.agent.started import Deletion
from colocate.model.gpu import GpuInventory
from colocate.telemetry import GPU_DELETIONS_WITHHELD, Event

REFUSED = "GpuRefused"
SWAPPED = "GpuSwapped"
COUNTED = "GpuCountInLimits"
"""Reasons of events."""

OF_A_CONTROLLER = 3
OF_THE_NODE = 20
"""Pods that are deleted within an hour: what makes them come back wrong again and again is for people to see."""
_HOUR = 3600.0
_MOST_MESSAGES = 32
"""Different messages for one pod: an owner who changes annotations without end is told no more."""


class Deletions:
    """Which pods were deleted of late, and whether one more may be."""

    def __init__(self, clock: Clock, before: Mapping[str, Deletion] | None = None) -> None:
        """`before` are those of an earlier life: an agent that keeps dying deletes no more than one that lives on."""
        self._clock = clock
        self.recent: Mapping[str, Deletion] = dict(before or {})
        """By uid; a new value for every change."""

    def bound(self, pod: GpuPod) -> str:
        """The bound that a pod's deletion would exceed, `controller` or `node`; empty where it may be deleted."""
        now = self._clock.time()
        self.recent = {uid: each for uid, each in self.recent.items() if abs(now - each.at) < _HOUR}
        if pod.uid in self.recent:
            return ""
        same = [each for each in self.recent.values() if each.controller == pod.controller_uid]
        if len(same) >= OF_A_CONTROLLER:
            return "controller"
        return "node" if len(self.recent) >= OF_THE_NODE else ""

    def count(self, pod: GpuPod) -> None:
        """It is deleted now."""
        if pod.uid not in self.recent:
            self.recent = {**self.recent, pod.uid: Deletion(self._clock.time(), pod.controller_uid)}


class GpuNotices:
    """Tells the pods of one node."""

    def __init__(
        self,
        pods: NodePods,
        clock: Clock,
        before: Mapping[str, Deletion] | None = None,
        keep: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`before` are deletions of an earlier life; `keep` stores `deletions` for the next one."""
        self._pods = pods
        self._clock = clock
        self._told: dict[str, set[str]] = {}
        """By uid, the messages that a pod has had."""
        self._deletions = Deletions(clock, before)
        self._keep = keep
        self._log = telemetry.logger()

    @property
    def deletions(self) -> Mapping[str, Deletion]:
        """By uid, those of the last hour."""
        return self._deletions.recent

    async def see_to_all(
        self,
        answers: GpuAnswers,
        inventory: GpuInventory,
        settings: GpuSettings,
        standing: NodeStanding | None = None,
        latest: Callable[[], GpuAnswers] | None = None,
    ) -> None:
        """Do what is due for every pod that is not ending. What a pod is due is written into its annotations only
        after it was announced. `latest` returns the answers of the moment: a slow server takes its time for each
        pod."""
        pods = self._pods.pods or {}
        self._told = {uid: told for uid, told in self._told.items() if uid in pods}
        for pod in pods.values():
            if not pod.is_ending:
                answers = latest() if latest is not None else answers
                told = standing is None or standing.is_told(pod.uid)
                await self._see_to(pod, answers, inventory, settings, told=told)

    async def _see_to(
        self,
        pod: GpuPod,
        answers: GpuAnswers,
        inventory: GpuInventory,
        settings: GpuSettings,
        *,
        told: bool,
    ) -> None:
        condemned = [each for each in answers.of_pod(pod.uid) if each.state is AnswerState.CONDEMNED]
        if condemned:
            await self._end(pod, condemned[0])
            return
        flags: dict[str, str] = {}
        for dialect in settings.dialects:
            claim = claim_of(pod, dialect, inventory, settings, answers.due)
            if claim is None:
                continue
            if claim.asks.problem:
                self._tell(pod, REFUSED, f"pod {pod.key}: {claim.asks.problem}")
            if cost := counted_in_limits(pod, dialect):
                self._tell(pod, COUNTED, f"pod {pod.key}: {cost}", warning=False)
            now = int(self._clock.time() * 1e9)
            due = flags_for(claim, answers, inventory, now, settings.keys)
            if claim.due is not None:
                self._tell_of_swap(claim, due.get(claim.wish.keys.gpus, ""))
            flags |= due
        if flags and told:
            await self._pods.set_flags(pod, flags)

    async def _end(self, pod: GpuPod, condemned: GpuAnswer) -> None:
        """The kubelet keeps what it was told: only a new pod gets a new answer. What runs is left alone."""
        reason = condemned.reason
        if pod.is_running(condemned.key.container):
            self._tell(pod, REFUSED, f"{reason}; it runs on until its container ends")
        elif condemned.spared:
            again = f"its {pod.controller} makes a new one" if pod.controller else "create it again"
            self._tell(
                pod,
                REFUSED,
                f"{reason}; it is not deleted, as no scheduler has booked its GPU for another pod: delete it, and "
                f"{again}",
            )
        elif not pod.controller:
            self._tell(
                pod, REFUSED, f"{reason}; no controller makes a new one: delete it and create it again"
            )
        elif bound := self._deletions.bound(pod):
            self._withhold(pod, reason, bound)
        else:
            self._tell(pod, REFUSED, f"{reason}; it is deleted, and its {pod.controller} makes a new one")
            self._deletions.count(pod)
            if self._keep is not None:
                await self._keep()  # Before it is done: the agent may die in the next moment.
            await self._pods.delete(pod)

    def _withhold(self, pod: GpuPod, reason: str, bound: str) -> None:
        most, whose = (
            (OF_A_CONTROLLER, f"pods of its {pod.controller}")
            if bound == "controller"
            else (OF_THE_NODE, "pods of this node")
        )
        message = (
            f"{reason}; it is not deleted, because {most} {whose} were within the hour: see what takes its GPU "
            "('colocate gpu explain'), then delete it"
        )
        if message not in self._told.get(pod.uid, ()):
            GPU_DELETIONS_WITHHELD.labels(bound).inc()
            self._log.warning(Event.GPU_DELETIONS_BOUNDED, pod=pod.key, bound=bound, most=most)
        self._tell(pod, REFUSED, message)

    def _tell_of_swap(self, claim: GpuClaim, gpus: str) -> None:
        if gpus:
            self._tell(
                claim.pod,
                SWAPPED,
                f"pod {claim.pod.key} has GPU {gpus}: the kubelet admitted it in the place of another pod, "
                "which has the other GPU",
                warning=False,
            )

    def _tell(self, pod: GpuPod, reason: str, message: str, *, warning: bool = True) -> None:
        told = self._told.setdefault(pod.uid, set())
        if message not in told and len(told) < _MOST_MESSAGES:
            told.add(message)
            self._pods.tell(pod, reason, message, warning=warning)
