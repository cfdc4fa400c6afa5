"""PreStartContainer: limits a pod to its blocks before its container exists.

The container does not start where the pod or its containers are unknown, or the limit cannot be set. The kubelet then
tries again, and the pod's events say why.
"""

from collections.abc import Callable, Sequence
from functools import partial

from colocate.aio import deadline, in_thread
from colocate.clock import Clock
from colocate.errors import ColocateError
from colocate.kubelet.holders import pods_holding
from colocate.kubelet.paths import KubeletPaths
from colocate.kubelet.plugin import Refused
from colocate.memory import MemoryState, SetLimit, limits_of, pod_ref
from colocate.memory.agent import pod_limits
from colocate.memory.agent.cluster_view import ClusterView
from colocate.memory.agent.machine import Machine
from colocate.model.holdings import Holding
from colocate.model.memory import Bytes, PodIdentity

TIME = 15.0
"""Seconds for the whole call; the kubelet gives up after 30."""
_WATCH_TIME = 5.0
"""Seconds to wait for the watch to show the pod."""


class PreStart:
    """Sets the limits of pods that are about to start."""

    def __init__(
        self,
        paths: KubeletPaths,
        machine: Machine,
        cluster: ClusterView,
        clock: Clock,
        *,
        resource: str,
        block_size: Bytes,
        swap: bool,
        state: Callable[[], MemoryState],
        is_off: Callable[[], bool],
    ) -> None:
        self._paths = paths
        self._machine = machine
        self._cluster = cluster
        self._clock = clock
        self._resource = resource
        self._block_size = block_size
        self._swap = swap
        self._state = state
        self._is_off = is_off

    async def hold(self, ids: Sequence[str], why_not: Callable[[PodIdentity], str]) -> None:
        """Limit the pod that holds these blocks; Refused, with the reason, where that is not possible."""
        try:
            async with deadline(self._clock, TIME):
                pod = await self._pod(frozenset(ids))
                if reason := why_not(pod):
                    raise self._refused(pod, reason)
                await self._limit(pod)
        except TimeoutError:
            raise Refused(
                f"the limit of the pod with {', '.join(sorted(ids))} could not be set within {TIME:g} s; "
                "the kubelet tries again"
            ) from None

    async def _pod(self, ids: frozenset[str]) -> PodIdentity:
        holding = await self._holding(ids)
        found = await self._cluster.until_pod(holding, self._resource, _WATCH_TIME)
        known = self._state().who(found.uid if found else holding.uid, found)
        if known.containers:
            return known
        name = holding.key or f"pod {holding.uid}"
        raise Refused(
            f"{name} holds {', '.join(sorted(ids))}, but the agent does not know its containers and so not its "
            f"limit: the API server has not sent it ({self._cluster.trouble or 'its watch is behind'}), or it is a "
            "static pod that podresources and the kubelet's checkpoint do not both list; the kubelet tries again"
        )

    async def _holding(self, ids: frozenset[str]) -> Holding:
        """The holding with these ids; a pod with several containers may hold more."""
        holdings = await pods_holding(self._paths, self._clock, self._resource)
        if holdings is None:
            raise Refused(
                "the agent cannot tell which pod this is: neither podresources nor the kubelet's checkpoint answers; "
                "the kubelet tries again"
            )
        holders = [each for each in holdings.pods if ids <= set(each.ids)]
        # The entry of an ended pod may remain beside the entry of the pod that has its ids now.
        holders = [each for each in holders if each.key] or holders
        if len(holders) == 1:
            return holders[0]
        whose = " and ".join(each.key or f"pod {each.uid}" for each in holders) or "no pod"
        raise Refused(
            f"the agent cannot tell which pod this is: {whose} holds {', '.join(sorted(ids))}; "
            "the kubelet tries again"
        )

    async def _limit(self, pod: PodIdentity) -> None:
        wanted = limits_of(pod, self._block_size, self._swap)
        if wanted is None:
            raise self._refused(pod, f"{pod.key} holds blocks of {self._resource} but requests none")
        if self._is_off():
            return
        action = SetLimit(
            pod=pod_ref(pod),
            limit=wanted.pod,
            swap=wanted.swap,
            containers=wanted.containers,
            reason=" ".join(wanted.reasons),
        )
        try:
            group = await self._machine.find(pod.uid)
            if group is not None:
                await in_thread(partial(pod_limits.hold, group.group, action, {}))
        except (ColocateError, OSError) as error:
            raise self._refused(pod, f"the memory limit of {pod.key} could not be set: {error}") from error
        if group is None:
            raise self._refused(
                pod,
                f"{pod.key} has no control group yet, or not where the agent looks; check memory.cgroupRoot",
            )

    def _refused(self, pod: PodIdentity, reason: str) -> Refused:
        self._cluster.tell_pod(pod_ref(pod), "ColocationMemoryRefused", reason, warning=True)
        return Refused(reason)
