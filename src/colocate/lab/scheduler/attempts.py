"""Carries out attempts to place a pod: binds it, or reports why not and returns it to the queue, or preempts
others.

Every attempt ends in exactly one of these, whatever the API server or an extender does meanwhile.
"""

import asyncio
from collections.abc import Sequence

from colocate import telemetry
from colocate.lab.api import disruption, pods
from colocate.lab.api.changes import Stored
from colocate.lab.api.deletion import delete
from colocate.lab.api.objects import at, uid_of
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.resources import DISRUPTION_BUDGETS, PODS
from colocate.lab.api.selectors import from_object
from colocate.lab.api.status import StatusError
from colocate.lab.scheduler import messages, preemption, statuses
from colocate.lab.scheduler.cluster import SchedulerCache
from colocate.lab.scheduler.cycle import Cycle, CycleVerdict
from colocate.lab.scheduler.extender import Extender, ExtenderFailed
from colocate.lab.scheduler.facts import SchedulablePod
from colocate.lab.scheduler.feed import Feed
from colocate.lab.scheduler.preemption import Budget, PreemptionPlan
from colocate.lab.scheduler.queue import Queue, WaitingPod
from colocate.lab.scheduler.recorder import Recorder
from colocate.telemetry import Event


class Attempts:
    """Attempts to place pods from the queue."""

    def __init__(
        self,
        registry: ObjectRegistry,
        feed: Feed,
        cluster: SchedulerCache,
        queue: Queue,
        cycle: Cycle,
        extenders: Sequence[Extender],
        recorder: Recorder,
    ) -> None:
        self._registry = registry
        self._feed = feed
        self._cluster = cluster
        self._queue = queue
        self._cycle = cycle
        self._binders = [one for one in extenders if one.settings.bind_verb]
        self._recorder = recorder
        self.binding: set[asyncio.Task[None]] = set()
        """Running binds by an extender; other pods do not wait for them."""

    async def attempt(self, waiting: WaitingPod) -> None:
        """Find a node for a pod and bind it, or report why not."""
        pod = waiting.pod
        try:
            if (stored := self._current(pod)) is None:
                self._queue.drop(pod.uid)
                return
            verdict = await self._cycle.choose(pod, stored)
            # The cluster may have changed while extenders were asked.
            self._feed.read()
            if (stored := self._current(pod)) is None:
                self._queue.drop(pod.uid)
            elif not verdict.node:
                self._fail(waiting, stored, verdict)
            elif not self._cycle.still_fits(pod, verdict.node):
                self._queue.retry(waiting, self._now)
            else:
                self._bind(waiting, stored, verdict.node)
        except ExtenderFailed as error:
            self._break_off(waiting, str(error))
        except StatusError as error:
            self._break_off(waiting, f"binding rejected: {error}")
        except Exception as error:  # noqa: BLE001 - whatever one pod does to it, the scheduler serves the others
            telemetry.logger().exception(Event.LAB_ATTEMPT_FAILED, pod=pod.key)
            self._break_off(waiting, f"{type(error).__name__}: {error}")

    async def stop(self) -> None:
        """Cancel the running binds."""
        tasks = list(self.binding)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def _now(self) -> float:
        return self._registry.clock.monotonic()

    def _current(self, pod: SchedulablePod) -> Stored | None:
        """The newest version of a pod, if it still needs a node."""
        stored = self._registry.find(PODS, pod.namespace, pod.name)
        if stored is None or uid_of(stored.body) != pod.uid or at(stored.body, "spec", "nodeName"):
            return None
        return stored

    def _bind(self, waiting: WaitingPod, stored: Stored, node: str) -> None:
        pod = waiting.pod
        binder = next((one for one in self._binders if one.is_interested(pod)), None)
        if binder is not None:
            self._cluster.assume(pod, node)
            task = asyncio.create_task(self._bind_elsewhere(binder, waiting, stored, node))
            self.binding.add(task)
            task.add_done_callback(self.binding.discard)
            return
        body = {"metadata": {"uid": pod.uid}, "target": {"kind": "Node", "name": node}}
        pods.bind(self._registry, pod.namespace, pod.name, body, dry_run=False)
        self._bound(pod, stored, node)

    async def _bind_elsewhere(self, binder: Extender, waiting: WaitingPod, stored: Stored, node: str) -> None:
        pod = waiting.pod
        try:
            await binder.bind(pod, node)
        except ExtenderFailed as error:
            freed = self._cluster.forget(pod.uid)
            self._break_off(waiting, f"binding rejected: {error}")
            if freed:
                self._queue.happened(freed, self._now)
        else:
            self._bound(pod, stored, node)

    def _bound(self, pod: SchedulablePod, stored: Stored, node: str) -> None:
        self._queue.drop(pod.uid)
        said = messages.scheduled(pod.namespace, pod.name, node)
        self._recorder.record(stored.body, "Scheduled", "Binding", said)

    def _break_off(self, waiting: WaitingPod, why: str) -> None:
        """The attempt failed for a reason other than the cluster's capacity: retry after the back-off."""
        stored = self._current(waiting.pod)
        if stored is None:
            self._queue.drop(waiting.pod.uid)
            return
        self._recorder.record(stored.body, "FailedScheduling", "Scheduling", why, warning=True)
        statuses.not_scheduled(self._registry, stored, statuses.FAULT, why)
        self._queue.retry(waiting, self._now)

    def _fail(self, waiting: WaitingPod, stored: Stored, verdict: CycleVerdict) -> None:
        pod = waiting.pod
        outcome = preemption.PreemptionOutcome(keep_nomination=True)
        if verdict.nodes:
            budgets = self._budgets() if self._might_preempt(pod) else []
            outcome = preemption.decide(
                pod, self._cluster.nodes, verdict.rejections, budgets, self._cycle.ignored
            )
        said = verdict.message(outcome.message)
        self._queue.put_aside(waiting, verdict.cause, self._now)
        self._recorder.record(stored.body, "FailedScheduling", "Scheduling", said, warning=True)
        nominated = outcome.plan.node if outcome.plan else None if outcome.keep_nomination else ""
        statuses.not_scheduled(self._registry, stored, statuses.UNSCHEDULABLE, said, nominated)
        if outcome.plan is not None:
            self._make_room(pod, stored, outcome.plan)

    def _might_preempt(self, pod: SchedulablePod) -> bool:
        return pod.may_preempt and any(one.has_below(pod.priority) for one in self._cluster.nodes)

    def _budgets(self) -> list[Budget]:
        store = self._registry.store
        return [
            Budget(
                stored.key.namespace,
                from_object(at(stored.body, "spec", "selector")),
                disruption.count(store, stored.key.namespace, stored.body).disruptionsAllowed,
            )
            for stored in store.items(DISRUPTION_BUDGETS.storage)
        ]

    def _make_room(self, pod: SchedulablePod, stored: Stored, plan: PreemptionPlan) -> None:
        """Delete the victims, and cancel the nominations of lower-priority pods to the same node."""
        for victim in plan.victims:
            found = self._registry.find(PODS, victim.namespace, victim.name)
            if found is None or uid_of(found.body) != victim.uid:
                continue
            statuses.preempted(self._registry, found, messages.preempting(pod.scheduler_name))
            said = messages.preempted(pod.uid, plan.node)
            self._recorder.record(
                found.body,
                "Preempted",
                "Preempting",
                said,
                related=stored.body,
                reporter=pod.scheduler_name,
            )
            delete(self._registry, PODS, victim.namespace, victim.name)
        node = self._cluster.find(plan.node)
        for rival in list(node.nominated.values()) if node else []:
            found = self._registry.find(PODS, rival.namespace, rival.name)
            if found is not None and rival.priority < pod.priority:
                statuses.without_nomination(self._registry, found)
