"""Answers the extender's questions from the table of loads. No I/O; answers are handed to the decision log.

In shadow mode all nodes get equal scores and nothing is assumed; the log says what the answer would have been.
"""

from collections.abc import Sequence

from colocate import telemetry
from colocate.clock import Clock
from colocate.cpus import ANNOTATION
from colocate.load import (
    LoadPod,
    MissingFilter,
    Mix,
    PackedNames,
    Sifted,
    decide,
    pod_facts,
    refused_everywhere,
    sift,
)
from colocate.scheduler.loop.decision_log import DecisionLog
from colocate.scheduler.loop.strict_cpus import StrictPod, strict_refusals
from colocate.scheduler.loop.table_feed import TableFeed
from colocate.scheduler.server.judge import Sieved
from colocate.telemetry import Event
from colocate.wire.extender_questions import Asked, read_names

_LEAST_BOUND = 10_000
"""Candidates that a question may have while few nodes are known, as at the start."""
_CALM = 60.0
"""Seconds without a pod that found every candidate too hot, after which that is over."""


class LoadJudge:
    """Answers the server's questions. See `judge.Judge`."""

    def __init__(
        self,
        facts: TableFeed,
        decisions: DecisionLog,
        clock: Clock,
        *,
        nodes_kept: int = 5,
        shadow: bool = False,
        sampled: bool = True,
    ) -> None:
        self._sampled = sampled
        self._facts = facts
        self._table = facts.table
        self._decisions = decisions
        self._clock = clock
        self._nodes_kept = nodes_kept
        self._shadow = shadow
        self._all_hot = AllHotTold(shadow=shadow)
        loads = self._table.settings
        self._needs_samples = loads.filter.enabled and loads.staleness.filter is MissingFilter.CLOSED

    def most_candidates(self) -> int:
        return max(_LEAST_BOUND, 2 * len(self._table.nodes))

    def prioritize(self, asked: Asked, caller: str) -> Sequence[int]:
        scores = self._score(
            asked.pod(LoadPod), caller, asked.names, PackedNames(asked.kept_names, read_names)
        )
        return [0] * len(asked.names) if self._shadow else scores

    def filter(self, asked: Asked, caller: str) -> Sieved:
        asked_for, now = asked.pod(LoadPod), self._clock.time()
        pod = pod_facts(asked_for)
        self._table.advance(now)
        # It is open again where the pod goes; the scores assume it on nodes, if any are left.
        self._table.withdraw(pod.uid)
        strict = self._strictly_refused(asked, asked_for.metadata.namespace)
        names = [name for name in asked.names if name not in strict] if strict else asked.names
        sifted = sift(self._table, self._table.demand(pod), names)
        if sifted.refused:
            telemetry.SCHEDULER_REFUSALS.labels(str(self._shadow).lower()).inc(len(sifted.refused))
        if pod.uid:
            self._all_hot.sifted(pod.key, sifted, self._clock.monotonic())
            self._decisions.sifted(pod.uid, sifted)
            left = names if self._shadow else sifted.passed
            if len(left) == 1:
                # kube-scheduler does not ask for the score of a single node.
                self._score(asked_for, caller, left)
            elif not left and sifted.refused:
                mix = self._mix(asked_for)
                self._decisions.refused(refused_everywhere(self._table, pod, len(sifted.refused), now, mix))
        if self._shadow:
            return Sieved()
        return Sieved({name: str(why) for name, why in sifted.refused.items()} | strict)

    def _strictly_refused(self, asked: Asked, namespace: str) -> dict[str, str]:
        """Nodes without a free CCX for a pod that must have one, by itself or by its namespace; none in shadow
        mode."""
        by_default = namespace in self._facts.strict_by_default
        if self._shadow or (not by_default and ANNOTATION.encode() not in bytes(asked.sent_pod)):
            return {}
        return strict_refusals(asked.pod(StrictPod), asked.names, self._facts.free_ccxs)

    def _score(
        self, pod: LoadPod, caller: str, names: Sequence[str], kept_as: PackedNames | None = None
    ) -> list[int]:
        facts = pod_facts(pod)
        answer = decide(
            self._table,
            facts,
            names,
            self._clock.time(),
            mix=self._mix(pod),
            keep=self._nodes_kept,
            assume=not self._shadow,
            kept_as=kept_as,
            # Only the caller vouches for a pod that the API server has not shown.
            vouched_by="" if self._facts.shows(facts) else caller,
        )
        if answer.decision.uid:
            # A question without a real pod, such as the doctor's, is not logged.
            self._decisions.judged(answer)
        return answer.scores

    def _mix(self, pod: LoadPod) -> Mix:
        return self._table.settings.policy_of(pod.spec.scheduler_name)

    def unready(self) -> Sequence[str]:
        facts = self._facts
        reasons = [
            f"the scheduler has not read all {name} of the cluster yet{f': {why}' if why else ''}"
            for name, synced, why in (
                ("nodes", facts.nodes.health.synced, facts.nodes.health.last_error),
                ("pods", facts.pods.health.synced, facts.pods.health.last_error),
            )
            if not synced
        ]
        if not self._sampled:
            # Loads judge no pod here.
            return reasons
        if not reasons and not facts.sampled.count:
            reasons.append("the scheduler has not asked for samples yet")
        if not reasons and self._needs_samples and not self._table.loads:
            # Without samples, the filter would refuse every node.
            reasons.append("no node has a sample yet, and load.staleness.filter is closed")
        return reasons


class AllHotTold:
    """Logs when the filter begins to find every candidate too hot, and when that is over: once each.

    Pods differ in demand and candidates, so one that finds a cool node does not end it; a minute in which every pod
    found one does.
    """

    def __init__(self, *, shadow: bool) -> None:
        self._shadow = shadow
        self._begun: float | None = None
        self._last = 0.0
        self._answers = 0

    def sifted(self, pod: str, sifted: Sifted, now: float) -> None:
        if sifted.all_hot:
            self._is_so(pod, sifted, now)
        elif self._begun is not None and now - self._last >= _CALM:
            telemetry.logger().info(
                Event.FILTER_COOLER,
                answers=self._answers,
                seconds=round(self._last - self._begun, 1),
                shadow=self._shadow,
            )
            self._begun = None

    def _is_so(self, pod: str, sifted: Sifted, now: float) -> None:
        outcome = "let through" if sifted.hot else "refused"
        telemetry.SCHEDULER_ALL_HOT.labels(outcome, str(self._shadow).lower()).inc()
        if self._begun is None:
            self._begun, self._answers = now, 0
            telemetry.logger().warning(
                Event.FILTER_ALL_HOT,
                pod=pod,
                candidates=len(sifted.passed) + len(sifted.refused),
                outcome=outcome,
                shadow=self._shadow,
            )
        self._last = now
        self._answers += 1
