"""Which pods of the API this kubelet has, by its own word: only they may be meant by an Allocate.

A kubelet takes a pod in just before it admits it, so the pod that an Allocate is for is known to podresources, and
pods behind it are not yet. What says to be a mirror, or was bound here and never arrives, claims nothing.
"""

from collections.abc import Iterable, Mapping, Sequence

from colocate.clock import Clock
from colocate.gpus import AnswerKey, AnswerState, GpuAnswers, GpuPod, GpuSettings, asks_of
from colocate.kubelet.paths import KubeletPaths
from colocate.kubelet.podresources import known_pods

_TIME = 0.5
"""Seconds for the kubelet's answer while it admits a pod."""
_ARRIVAL = 10.0
"""Seconds within which a kubelet takes in a pod that is bound to its node."""
_AT_ONCE = 20
"""Pods that are asked for in one look: a kubelet answers 100 questions a second, and others ask, too."""


class Claimants:
    """Asks one kubelet."""

    def __init__(self, paths: KubeletPaths, clock: Clock) -> None:
        self.not_run: frozenset[str] = frozenset()
        """Pods that ask for GPUs, are bound here, and that the kubelet does not run, by uid."""
        self._paths = paths
        self._clock = clock
        self._missing: dict[str, tuple[float, float]] = {}
        """By uid, when the kubelet first and last said that it has not got a pod."""
        self._turns: dict[str, int] = {}
        """By uid, the look in which a pod was asked for last, or seen first."""
        self._looks = 0

    async def among(self, waiting: Sequence[GpuPod]) -> frozenset[str] | None:
        """The uids of those that the kubelet may be asking for; None where it does not tell."""
        if not waiting:
            return frozenset()
        told = await known_pods(
            self._paths, self._clock, [pod.key for pod in waiting], only_first=True, timeout=_TIME
        )
        if told.pods:
            return frozenset(pod.uid for pod in waiting if pod.key in told.pods)
        if not told.silent:
            return frozenset()
        # A slow kubelet may have taken in by now what it had not got at the last look: a pod that is called absent is
        # passed over for others, and not refused.
        left = frozenset(pod.uid for pod in waiting if pod.key not in told.absent)
        return left - self.not_run or left

    async def look(self, pods: Mapping[str, GpuPod], answers: GpuAnswers, settings: GpuSettings) -> bool:
        """Find out again which pods the kubelet does not run; whether that has changed. A silent kubelet leaves only
        mirrors known."""
        asking = [
            pod
            for pod in pods.values()
            if not pod.is_finished and any(asks_of(pod, dialect) for dialect in settings.dialects)
        ]
        mirrors = {pod.uid for pod in asking if pod.is_mirror}
        running = {each.key.uid for each in answers if each.state is AnswerState.PROVEN}
        running |= _uids(answers.lost)
        doubtful = [pod for pod in asking if pod.uid not in mirrors | running]
        # In turn, new ones last: however many there are, and however many come, each is looked at.
        self._looks += 1
        self._turns = {pod.uid: self._turns.get(pod.uid, self._looks) for pod in doubtful}
        asked = sorted(doubtful, key=lambda pod: (self._turns[pod.uid], pod.created))[:_AT_ONCE]
        told = await known_pods(self._paths, self._clock, [pod.key for pod in asked])
        now = self._clock.monotonic()
        missing = {uid: seen for uid, seen in self._missing.items() if uid in self._turns}
        for pod in asked:
            if pod.key in told.absent:
                missing[pod.uid] = missing.get(pod.uid, (now, now))[0], now
            elif pod.key in told.pods:
                missing.pop(pod.uid, None)
            else:
                continue  # The kubelet did not come to it.
            self._turns[pod.uid] = self._looks
        self._missing = missing
        absent = {uid for uid, (since, last) in missing.items() if last - since >= _ARRIVAL}
        before, self.not_run = self.not_run, frozenset(mirrors if told.silent else mirrors | absent)
        return self.not_run != before


def _uids(keys: Iterable[AnswerKey]) -> set[str]:
    return {key.uid for key in keys}
