"""Judges by the table of loads: what the extender answers with. No I/O; what was answered is handed to the log.

In shadow mode every answer is neutral, all nodes alike, and nothing is assumed from it: the record says what it
would have been.
"""

from collections.abc import Sequence

from colocate import telemetry
from colocate.apps.scheduler.decisions import DecisionLog
from colocate.apps.scheduler.facts import Facts
from colocate.apps.scheduler.judge import Sieved
from colocate.clock import Clock
from colocate.load import decide, sift
from colocate.load.reading import ApiPod, pod_facts
from colocate.load.settings import MissingFilter
from colocate.wire.extender import Asked

_LEAST_BOUND = 10_000
"""Candidates that are judged at once however few nodes are known, as none are at the start."""


class LoadJudge:
    """Decides for the server. See `judge.Judge`."""

    def __init__(
        self,
        facts: Facts,
        decisions: DecisionLog,
        clock: Clock,
        *,
        nodes_kept: int = 5,
        shadow: bool = False,
    ) -> None:
        self._facts = facts
        self._table = facts.table
        self._decisions = decisions
        self._clock = clock
        self._nodes_kept = nodes_kept
        self._shadow = shadow
        loads = self._table.settings
        self._needs_samples = loads.filter.enabled and loads.staleness.filter is MissingFilter.CLOSED

    def most_candidates(self) -> int:
        return max(_LEAST_BOUND, 2 * len(self._table.nodes))

    def prioritize(self, asked: Asked) -> Sequence[int]:
        pod = asked.pod(ApiPod)
        answer = decide(
            self._table,
            pod_facts(pod),
            asked.names,
            self._clock.time(),
            mix=self._table.settings.policy_of(pod.spec.scheduler_name),
            keep=self._nodes_kept,
            assume=not self._shadow,
            kept_as=asked.kept_names,
        )
        if answer.decision.uid:
            # Whoever asks for a pod that is none, such as the doctor, leaves no trace.
            self._decisions.judged(answer)
        return [0] * len(asked.names) if self._shadow else answer.scores

    def filter(self, asked: Asked) -> Sieved:
        self._table.advance(self._clock.time())
        pod = pod_facts(asked.pod(ApiPod))
        # Where it goes is open again; what it is assumed on is said by the scores, if any node is left.
        self._table.withdraw(pod.uid)
        sifted = sift(self._table, self._table.demand(pod), asked.names)
        self._decisions.sifted(pod.uid, sifted)
        if sifted.refused:
            telemetry.SCHEDULER_REFUSALS.labels(str(self._shadow).lower()).inc(len(sifted.refused))
        if self._shadow:
            return Sieved()
        return Sieved({name: str(why) for name, why in sifted.refused.items()})

    def unready(self) -> Sequence[str]:
        facts = self._facts
        reasons = [
            f"the cluster's {name} are not all known yet{f': {why}' if why else ''}"
            for name, synced, why in (
                ("nodes", facts.nodes.health.synced, facts.nodes.health.last_error),
                ("pods", facts.pods.health.synced, facts.pods.health.last_error),
            )
            if not synced
        ]
        if not reasons and not facts.sampled.count:
            reasons.append("samples were not asked for yet")
        if not reasons and self._needs_samples and not self._table.loads:
            # Without any, the filter as it is configured would refuse every node.
            reasons.append("no node has a sample yet, and load.staleness.filter is closed")
        return reasons
