"""Answers Allocate and PreStartContainer for shared GPUs: joins the pods of the API, the kubelet's records, the book.

Before every answer the earlier ones are settled by what the kubelet has written down; `colocate.gpus` decides, this
asks, tells and remembers. Allocate writes nothing to the API: a slow server holds up no admission.
"""

import asyncio
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import NoReturn

import msgspec

from colocate import telemetry
from colocate.aio import Watched, deadline, first, in_thread
from colocate.apps.gpus.notices import REFUSED, GpuNotices
from colocate.apps.gpus.pods import NodePods
from colocate.apps.gpus.started import StartedContainers
from colocate.clock import Clock
from colocate.crashpoints import reached
from colocate.errors import Unavailable, UserError, visible
from colocate.gpus import (
    AnswerKey,
    AnswerState,
    GpuAnswer,
    GpuAnswers,
    GpuBook,
    GpuHolding,
    GpuMatch,
    GpuRecords,
    GpuRefusal,
    GpuSettings,
    Slices,
    explain_pod,
    match,
    settle,
    slices_of,
    unhealthy_slices,
)
from colocate.kubelet.holders import injected_entries
from colocate.kubelet.paths import KubeletPaths
from colocate.kubelet.plugin import Refused
from colocate.kubelet.podresources import listed_pods
from colocate.kubelet.watch import identity
from colocate.model.device import Allocation
from colocate.model.figures import count, some
from colocate.model.gpu import GpuInventory
from colocate.telemetry import GPU_ANSWERS, GPU_VERDICTS, Event

_WATCH_TIME = 3.0
"""Seconds that the API may be behind the kubelet in what pods there are."""
_FIRST_TIME = 8.0
"""Likewise, while it has not told of any; a plugin has 10 s to answer by default."""
_PRESTART_TIME = 15.0
"""Seconds for a proof; the kubelet itself gives up after 30."""
_REFRESH = 10.0
_LEAST_GAP = 1.0


class PodAllocator:
    """Answers all GPU plugins of one node."""

    def __init__(
        self,
        settings: GpuSettings,
        pods: NodePods,
        paths: KubeletPaths,
        started: StartedContainers,
        clock: Clock,
        refresh: float = _REFRESH,
    ) -> None:
        self.settings = settings
        self.changed = Watched()
        self._pods = pods
        self._paths = paths
        self._started = started
        self._clock = clock
        self._refresh = refresh
        self._answers = GpuAnswers(started=started.load())
        self._inventory = GpuInventory()
        self._book = GpuBook()
        self._slices: dict[str, Slices] = {}
        self._records = GpuRecords()
        self._silent = ""
        """Why the kubelet's records could not be read last."""
        self._lock = asyncio.Lock()
        self._asked = Watched()
        self._notices = GpuNotices(pods, clock)
        self._log = telemetry.logger()

    @property
    def book(self) -> GpuBook:
        return self._book

    @property
    def answers(self) -> GpuAnswers:
        return self._answers

    @property
    def records(self) -> GpuRecords:
        """What the kubelet and the API said last."""
        return self._records

    @property
    def notes(self) -> tuple[str, ...]:
        silent = [f"the kubelet's records cannot be read: {self._silent}"] if self._silent else []
        unkept = [f"starts are not remembered: {self._started.trouble}"] if self._started.trouble else []
        return (*self._pods.notes, *silent, *unkept, *self._forgotten())

    def _forgotten(self) -> tuple[str, ...]:
        pods = sorted({answer.pod for answer in self._answers.lost.values()})
        if not pods:
            return ()
        return (
            f"the kubelet has lost its record of {count(len(pods), 'running pod')} ({some(pods)}): they keep their "
            "GPUs, and one whose container cannot start again must be deleted and created anew",
        )

    async def run(self) -> None:
        """Follow pods and the kubelet until cancelled."""
        await first(self._pods.run(), self._keep_settled())

    def explain(self, pod: str) -> tuple[str, ...]:
        found = self._pods.named(pod)
        if found is None:
            raise UserError(
                f"there is no pod {pod} on this node; 'kubectl get pods -A -o wide' says where it is"
            )
        pods = list((self._pods.pods or {}).values())
        return explain_pod(found, pods, self._answers, self._inventory, self.settings)

    def take_settings(self, settings: GpuSettings) -> None:
        """Go on by other settings; the dialects stay those that are served."""
        self.settings = msgspec.structs.replace(settings, dialects=self.settings.dialects)

    def take_inventory(self, inventory: GpuInventory) -> None:
        if inventory != self._inventory:
            self._inventory = inventory
            self._slices.clear()
            self._take(self._answers, force=True)

    def unhealthy(self, resource: str) -> AbstractSet[str]:
        held = {
            id: answer.gpus
            for answer in self._answers
            if answer.key.resource == resource
            for id in answer.ids
        }
        lost = self._answers.lost.items()
        spare = sum(
            len(answer.ids)
            for key, answer in lost
            if key.resource == resource and key not in self._answers.by_key
        )
        return unhealthy_slices(self._slices_of(resource), self._book, held, spare)

    # --- what the kubelet asks -------------------------------------------------------------------

    async def allocate(self, resource: str, ids: Sequence[str]) -> Allocation:
        dialect = self.settings.dialect_of(resource)
        if dialect is None:
            raise Refused(f"this agent does not share GPUs as {resource}; see gpus.dialects")
        async with self._lock:
            result = await self._answered(resource, ids)
            if isinstance(result, GpuRefusal):
                GPU_ANSWERS.labels(resource, "refused").inc()
                self._refuse(result)
            self._take(result.answers)
            reached("gpus.allocated")
        GPU_ANSWERS.labels(resource, "given").inc()
        answer = result.answer
        self._log.info(
            Event.GPU_GIVEN,
            pod=answer.pod,
            container=answer.key.container,
            gpus=answer.gpus,
            memory=answer.memory,
        )
        self._asked.changed()
        return answer.injected or Allocation()

    async def _answered(self, resource: str, ids: Sequence[str]) -> GpuMatch | GpuRefusal:
        """The answer by what is known; a pod that nobody knows yet is waited for."""
        dialect = self.settings.dialect_of(resource)
        assert dialect is not None
        result = GpuRefusal(
            sentence=f"the API server has not told of the pods of this node: {self._why_not_heard()}"
        )
        seconds = _WATCH_TIME if self._pods.pods is not None else _FIRST_TIME
        with suppress(TimeoutError):
            async with deadline(self._clock, seconds):
                while True:
                    seen = self._pods.changed.count
                    if (pods := self._pods.pods) is not None:
                        await self._settle()
                        now = self._clock.monotonic()
                        found = match(
                            ids, dialect, pods.values(), self._answers, self._inventory, self.settings, now
                        )
                        if isinstance(found, GpuMatch) or not found.unknown:
                            return found
                        result = found
                    await self._pods.changed.beyond(seen)
        return result

    async def prestart(self, resource: str, ids: Sequence[str]) -> None:
        """By what the kubelet has written down; its podresources must not say otherwise."""
        asked = frozenset(ids)
        try:
            async with deadline(self._clock, _PRESTART_TIME):
                answers = await self._proof(resource, asked)
                for answer in answers:
                    await self._confirm(answer)
        except TimeoutError:
            raise Refused(
                f"whose GPU this is could not be proven within {_PRESTART_TIME:g} s; the kubelet tries again"
            ) from None
        finally:
            self._asked.changed()
        condemned = [answer for answer in answers if answer.state is AnswerState.CONDEMNED]
        if condemned:
            raise Refused(f"{condemned[0].reason}; create it anew")
        for answer in answers:
            self._check_gpus(answer)
        await in_thread(lambda: self._started.save(self._answers.proven))
        reached("gpus.proven")

    async def _proof(self, resource: str, ids: frozenset[str]) -> Sequence[GpuAnswer]:
        """The answers of the containers that hold these ids, proven or condemned; Refused where nobody knows."""
        why = "the kubelet's checkpoint names no pod of the API that holds its devices"
        with suppress(TimeoutError):
            async with deadline(self._clock, 2 * _WATCH_TIME):
                while True:
                    seen = self._pods.changed.count
                    async with self._lock:  # Not while waiting: others are asked for meanwhile.
                        holdings = await self._settle()
                    if holdings is None:
                        why = f"the kubelet's records cannot be read ({self._silent})"
                    mine = [
                        each.key
                        for each in holdings or ()
                        if each.key.resource == resource and each.ids == ids
                    ]
                    found = [self._answers.by_key[key] for key in mine if key in self._answers.by_key]
                    if found and all(answer.state is not AnswerState.GIVEN for answer in found):
                        return found
                    await self._pods.changed.beyond(seen)
        raise Refused(
            f"the agent cannot tell which pod this container is of: {why}, "
            f"{self._why_not_heard()}; the kubelet tries again"
        )

    async def _confirm(self, answer: GpuAnswer) -> None:
        """Refused where podresources names another pod; one that does not list the devices says nothing."""
        try:
            listing = await listed_pods(self._paths, self._clock)
        except Unavailable as error:
            self._silent = str(error)
            return
        holders = {
            pod.key
            for pod in listing
            for resources in pod.containers.values()
            if resources.get(answer.key.resource) == answer.ids
        }
        if holders and answer.pod not in holders:
            raise Refused(
                f"podresources says that {', '.join(sorted(holders))} holds the devices of {answer.pod}, and the "
                "kubelet's checkpoint says otherwise; the kubelet tries again"
            )

    def _check_gpus(self, answer: GpuAnswer) -> None:
        """Refused where a container would restart with a GPU that was replaced: its runtime knows no such device."""
        gone = [uuid for uuid in answer.gpus if self._inventory.get(uuid) is None]
        if gone:
            sentence = (
                f"pod {visible(answer.pod)}: container {visible(answer.key.container)} was started with GPU "
                f"{visible(', '.join(gone))}, which is not on this node any more; delete the pod and create it anew"
            )
            self._refuse(GpuRefusal(sentence=sentence, uid=answer.key.uid, key=answer.pod))

    def _refuse(self, refusal: GpuRefusal) -> NoReturn:
        pod = (self._pods.pods or {}).get(refusal.uid)
        self._log.warning(Event.GPU_REFUSED, pod=refusal.key, reason=refusal.sentence)
        if pod is not None:
            self._pods.tell(pod, REFUSED, refusal.sentence)
        raise Refused(refusal.sentence)

    # --- what follows from it --------------------------------------------------------------------

    async def _keep_settled(self) -> None:
        """Settle when pods change, the kubelet has asked, or from time to time; then tell and write."""
        await self._pods.synced()
        while True:
            pods, asked = self._pods.changed.count, self._asked.count
            async with self._lock:
                await self._settle()
            await self._notices.see_to_all(self._answers, self._inventory, self.settings)
            await in_thread(lambda: self._started.save(self._answers.proven))
            await self._clock.sleep(_LEAST_GAP)
            await first(
                self._clock.sleep(self._refresh), self._pods.changed.beyond(pods), self._asked.beyond(asked)
            )

    async def _settle(self) -> tuple[GpuHolding, ...] | None:
        """Answers against records; None where the kubelet's cannot be read."""
        holdings: tuple[GpuHolding, ...] | None = None
        kubelet = identity(self._paths.kubelet_socket)
        try:
            resources = {dialect.memory for dialect in self.settings.dialects}
            holdings = tuple(
                GpuHolding(
                    key=AnswerKey(each.uid, each.resource, each.container),
                    ids=each.ids,
                    injected=each.injected,
                )
                for each in await injected_entries(self._paths, resources)
            )
            self._silent = ""
        except Unavailable as error:
            self._silent = str(error)
        self._records = GpuRecords(self._pods.pods, holdings, str(kubelet or ""))
        self._take(
            settle(
                self._records,
                self._answers,
                self._inventory,
                self.settings,
                self._clock.monotonic(),
                gpu_of=self._gpu_of,
            )
        )
        return holdings

    def _take(self, answers: GpuAnswers, *, force: bool = False) -> None:
        """Remember; what was decided anew is told."""
        before, self._answers = self._answers, answers
        if forgotten := answers.lost.keys() - before.lost.keys():
            pods = sorted({answers.lost[key].pod for key in forgotten})
            self._log.warning(Event.GPU_FORGOTTEN, pods=pods[:20], count=len(pods))
        for key, answer in answers.by_key.items():
            old = before.by_key.get(key)
            if answer.state is not AnswerState.GIVEN and (old is None or old.state is not answer.state):
                GPU_VERDICTS.labels(key.resource, str(answer.state)).inc()
                self._log.info(
                    Event.GPU_JUDGED,
                    pod=answer.pod,
                    container=key.container,
                    gpus=answer.gpus,
                    verdict=str(answer.state),
                    reason=answer.reason,
                )
        if force or (before.by_key, before.lost) != (answers.by_key, answers.lost):
            self._book = answers.book(self._inventory)
            self.changed.changed()

    # --- small things ----------------------------------------------------------------------------

    def _slices_of(self, resource: str) -> Slices:
        if resource not in self._slices:
            dialect = self.settings.dialect_of(resource)
            unit = dialect.unit if dialect is not None else 1
            self._slices[resource] = slices_of(self._inventory.shared, unit)
        return self._slices[resource]

    def _gpu_of(self, id: str) -> str | None:
        """Ids name their GPU, whichever resource they are of."""
        found = (self._slices_of(dialect.memory).gpu_of(id) for dialect in self.settings.dialects)
        return next(filter(None, found), None)

    def _why_not_heard(self) -> str:
        return "; ".join(self._pods.notes) or "its watch is behind"
