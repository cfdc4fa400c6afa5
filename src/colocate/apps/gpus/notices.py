"""What follows from who has which GPU: events on pods, their annotations, and the end of pods that cannot start.

Seen to after every settlement, from scratch: what could not be told or written is tried again later.
"""

from colocate.apps.gpus.pods import NodePods
from colocate.clock import Clock
from colocate.gpus import (
    AnswerState,
    GpuAnswer,
    GpuAnswers,
    GpuClaim,
    GpuPod,
    GpuSettings,
    claim_of,
    flags_for,
)
from colocate.model.gpu import GpuInventory

REFUSED = "GpuRefused"
SWAPPED = "GpuSwapped"
"""Reasons of events."""


class GpuNotices:
    """Tells the pods of one node."""

    def __init__(self, pods: NodePods, clock: Clock) -> None:
        self._pods = pods
        self._clock = clock
        self._told: set[tuple[str, str]] = set()
        """By uid, the messages that a pod has had."""

    async def see_to_all(self, answers: GpuAnswers, inventory: GpuInventory, settings: GpuSettings) -> None:
        """Whatever is due for any pod that is not ending."""
        pods = self._pods.pods or {}
        self._told = {each for each in self._told if each[0] in pods}
        for pod in pods.values():
            if not pod.is_ending:
                await self._see_to(pod, answers, inventory, settings)

    async def _see_to(
        self, pod: GpuPod, answers: GpuAnswers, inventory: GpuInventory, settings: GpuSettings
    ) -> None:
        condemned = [each for each in answers.of_pod(pod.uid) if each.state is AnswerState.CONDEMNED]
        if condemned:
            await self._end(pod, condemned[0])
            return
        flags: dict[str, str] = {}
        for dialect in settings.dialects:
            claim = claim_of(pod, dialect, inventory, settings, answers.due.get(pod.uid))
            if claim is None:
                continue
            if claim.asks.problem:
                self._tell(pod, REFUSED, f"pod {pod.key}: {claim.asks.problem}")
            now = int(self._clock.time() * 1e9)
            due = flags_for(claim, answers, inventory, now, settings.key)
            if pod.uid in answers.due:
                self._tell_of_swap(claim, due.get(claim.wish.keys.gpus, ""))
            flags |= due
        if flags:
            await self._pods.set_flags(pod, flags)

    async def _end(self, pod: GpuPod, condemned: GpuAnswer) -> None:
        """The kubelet keeps what it was told: only a new pod gets a new answer. What runs is left alone."""
        reason = condemned.reason
        if pod.is_running(condemned.key.container):
            self._tell(pod, REFUSED, f"{reason}; it runs on until its container ends")
        elif pod.controller:
            self._tell(pod, REFUSED, f"{reason}; it is deleted, and its {pod.controller} makes a new one")
            await self._pods.delete(pod)
        else:
            self._tell(pod, REFUSED, f"{reason}; no controller makes a new one: delete it and create it anew")

    def _tell_of_swap(self, claim: GpuClaim, gpus: str) -> None:
        if gpus:
            self._tell(
                claim.pod,
                SWAPPED,
                f"pod {claim.pod.key} has GPU {gpus}: the kubelet admitted it in the place of a pod just like it, "
                "which has the other GPU",
                warning=False,
            )

    def _tell(self, pod: GpuPod, reason: str, message: str, *, warning: bool = True) -> None:
        if (pod.uid, message) not in self._told:
            self._told.add((pod.uid, message))
            self._pods.tell(pod, reason, message, warning=warning)
