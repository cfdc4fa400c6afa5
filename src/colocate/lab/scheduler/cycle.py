"""Chooses a node for one pod by filters, extenders, scores and chance. Changes nothing; waits only for
extenders."""

import asyncio
from collections.abc import Mapping, Sequence
from random import Random

import msgspec

from colocate import telemetry
from colocate.lab.api.changes import Stored
from colocate.lab.scheduler import messages, scores
from colocate.lab.scheduler.cluster import ClusterNode, SchedulerCache
from colocate.lab.scheduler.configuration import Configuration
from colocate.lab.scheduler.extender import Extender, ExtenderFailed
from colocate.lab.scheduler.facts import SchedulablePod
from colocate.lab.scheduler.filters import FilterCause, Rejection, check
from colocate.lab.scheduler.search import Search
from colocate.telemetry import Event

_EXTENDER_SCALE = 10
"""Extenders score 0 to 10, plugins 0 to 100."""


class CycleVerdict(msgspec.Struct, frozen=True, eq=False):
    """The node for a pod or, where there is none, the reasons by node."""

    node: str = ""
    nodes: int = 0
    rejections: Mapping[str, Rejection] = {}

    @property
    def reasons(self) -> list[str]:
        return [reason for one in self.rejections.values() for reason in one.reasons]

    @property
    def cause(self) -> FilterCause:
        """What must change before another attempt makes sense."""
        found = FilterCause(0)
        for one in self.rejections.values():
            found |= one.cause
        # An extender's criteria are unknown, and so is why it left out a node without a reason.
        if found & FilterCause.EXTENDER or len(self.rejections) < self.nodes or not self.nodes:
            return FilterCause.anything()
        return found

    def message(self, preemption: str) -> str:
        if not self.nodes:
            return messages.NO_NODES
        return messages.failed(self.nodes, self.reasons, preemption)


class Cycle:
    """Chooses nodes, one pod at a time."""

    def __init__(
        self,
        configuration: Configuration,
        extenders: Sequence[Extender],
        cluster: SchedulerCache,
        random: Random,
    ) -> None:
        self._configuration = configuration
        self._extenders = extenders
        self._cluster = cluster
        self._random = random
        self._search = Search()
        self.ignored = configuration.ignored_resources

    async def choose(self, pod: SchedulablePod, stored: Stored) -> CycleVerdict:
        """Choose a node for a pod. ExtenderFailed where a required extender fails."""
        nodes = self._cluster.nodes
        if not nodes:
            return CycleVerdict()
        feasible, rejections = await self._feasible(pod, stored, nodes)
        if not feasible:
            return CycleVerdict("", len(nodes), rejections)
        if len(feasible) == 1:
            return CycleVerdict(feasible[0].node.name, len(nodes))
        found = scores.totals(pod, feasible)
        if self._extenders:
            await self._add_priorities(pod, stored, feasible, found)
        return CycleVerdict(scores.pick(found, self._random), len(nodes))

    def still_fits(self, pod: SchedulablePod, node: str) -> bool:
        """Whether a chosen node still fits: the cluster may have changed while an extender was asked."""
        found = self._cluster.find(node)
        return found is not None and check(pod, found.node, found.account_for(pod), self.ignored) is None

    async def _feasible(
        self, pod: SchedulablePod, stored: Stored, nodes: Sequence[ClusterNode]
    ) -> tuple[list[ClusterNode], dict[str, Rejection]]:
        nominated = self._cluster.find(pod.nominated) if pod.nominated else None
        if nominated is not None and self.still_fits(pod, pod.nominated):
            accepted = await self._ask_extenders(pod, stored, [nominated], {})
            if accepted:
                return accepted, {}
        percentage = self._configuration.percentage(pod.scheduler_name)
        found = self._search.find(pod, nodes, percentage, self.ignored)
        if not self._extenders or not found.feasible:
            return found.feasible, found.rejections
        return await self._ask_extenders(pod, stored, found.feasible, found.rejections), found.rejections

    async def _ask_extenders(
        self,
        pod: SchedulablePod,
        stored: Stored,
        feasible: list[ClusterNode],
        rejections: dict[str, Rejection],
    ) -> list[ClusterNode]:
        """The nodes that every extender accepts; the reasons for the others are added to the rejections."""
        for extender in self._extenders:
            if not feasible:
                break
            if not extender.settings.filter_verb or not extender.is_interested(pod):
                continue
            try:
                answer = await extender.filter(stored.encoded, [one.stored for one in feasible])
            except ExtenderFailed as error:
                if not extender.settings.ignorable:
                    raise
                telemetry.logger().warning(Event.LAB_EXTENDER_PASSED_OVER, pod=pod.key, error=str(error))
                continue
            for name, reason in answer.failed.items():
                rejections[name] = Rejection((reason,), FilterCause.EXTENDER, curable=True)
            for name, reason in answer.unresolvable.items():
                rejections[name] = Rejection((reason,), FilterCause.EXTENDER)
            accepted = set(answer.names)
            feasible = [one for one in feasible if one.node.name in accepted]
        return feasible

    async def _add_priorities(
        self, pod: SchedulablePod, stored: Stored, feasible: Sequence[ClusterNode], found: dict[str, int]
    ) -> None:
        asked = [one for one in self._extenders if one.settings.prioritize_verb and one.is_interested(pod)]
        nodes = [one.stored for one in feasible]
        answers = await asyncio.gather(*(self._priorities(one, pod, stored, nodes) for one in asked))
        for answer in answers:
            for name, score in answer.items():
                if name in found:
                    found[name] += score * _EXTENDER_SCALE

    async def _priorities(
        self, extender: Extender, pod: SchedulablePod, stored: Stored, nodes: Sequence[Stored]
    ) -> dict[str, int]:
        try:
            return await extender.prioritize(stored.encoded, nodes)
        except ExtenderFailed as error:
            # kube-scheduler ignores failures of prioritize calls.
            telemetry.logger().warning(Event.LAB_EXTENDER_PASSED_OVER, pod=pod.key, error=str(error))
            return {}
