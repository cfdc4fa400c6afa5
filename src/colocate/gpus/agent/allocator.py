"""Answers Allocate and PreStartContainer for shared GPUs: joins the pods of the API, the kubelet's records, the book.

Before every answer the earlier ones are settled by what the kubelet has written down; `colocate.gpus` decides, this
asks, tells and remembers. The kubelet tells which pod it is admitting; `pod_search` looks for a pod that the watch
has not told of yet, within the time that all such questions share. Allocate writes nothing to the API: a slow server
holds up no admission.
"""

import asyncio
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from typing import NoReturn

import msgspec

from colocate import telemetry
from colocate.aio import Watched, deadline, first, in_thread
from colocate.clock import Clock
from colocate.crashpoints import reached
from colocate.errors import Unavailable, UserError, visible
from colocate.gpus import (
    AnnouncedPod,
    AnswerKey,
    AnswerState,
    Dialect,
    GpuAnswer,
    GpuAnswers,
    GpuBook,
    GpuHolding,
    GpuMatch,
    GpuPod,
    GpuRecords,
    GpuRefusal,
    GpuSettings,
    Slices,
    Unassumed,
    explain_pod,
    holders,
    match,
    overridden,
    settle,
    slices_of,
    unhealthy_slices,
    waiting_pods,
)
from colocate.gpus.agent.claimants import Claimants
from colocate.gpus.agent.key_file import KeyFile
from colocate.gpus.agent.notices import REFUSED, GpuNotices
from colocate.gpus.agent.pod_search import PodSearch
from colocate.gpus.agent.pods import NodePods
from colocate.gpus.agent.standing import NodeStanding
from colocate.gpus.agent.started import StartedContainers
from colocate.kubelet.holders import injected_entries
from colocate.kubelet.paths import KubeletPaths
from colocate.kubelet.plugin import Refused
from colocate.kubelet.podresources import known_pods
from colocate.kubelet.watch import identity
from colocate.model.device import Allocation
from colocate.model.figures import count, some
from colocate.model.gpu import GpuInventory
from colocate.telemetry import GPU_ANSWERS, GPU_VERDICTS, Event

_PROOF_TIME = 6.0
"""Seconds that the API may be behind the kubelet in what pods there are, when a container is about to start."""
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
        standing: NodeStanding | None = None,
        keys: KeyFile | None = None,
    ) -> None:
        self.settings = settings
        self.keys = keys or KeyFile(None)
        self.changed = Watched()
        self._pods = pods
        self._paths = paths
        self._started = started
        self._clock = clock
        self._refresh = refresh
        self._standing = standing
        self._has_recalled = standing is None
        """Whether what an earlier life has announced is known: nothing is answered before."""
        keys_started, due = started.load()
        self._answers = GpuAnswers(started=keys_started, due=due)
        self._inventory = GpuInventory()
        self._book = GpuBook()
        self._slices: dict[str, Slices] = {}
        self._marked: dict[str, frozenset[str]] = {}
        """By resource, the ids that were marked last."""
        self._records = GpuRecords()
        self._silent = ""
        """Why the kubelet's records could not be read last."""
        self._refused: set[str] = set()
        """Pods whose Allocate was refused: the kubelet asks for them no more."""
        self._lock = asyncio.Lock()
        self._saving = asyncio.Lock()
        self._asked = Watched()
        self._settled = Watched()
        self._claimants = Claimants(paths, clock)
        self._search = PodSearch(pods, clock)
        self._notices = GpuNotices(pods, clock, started.deletions, self._save_started)
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
    def not_run(self) -> frozenset[str]:
        """Pods that ask for GPUs, are bound here, and that the kubelet does not run, by uid."""
        return self._claimants.not_run

    @property
    def notes(self) -> tuple[str, ...]:
        silent = [f"the kubelet's records cannot be read: {self._silent}"] if self._silent else []
        unkept = [f"starts are not remembered: {self._started.trouble}"] if self._started.trouble else []
        unsealed = [self.keys.trouble] if self.keys.trouble else []
        return (*self._pods.notes, *silent, *unkept, *unsealed, *self._forgotten())

    def _forgotten(self) -> tuple[str, ...]:
        pods = sorted({answer.pod for answer in self._answers.lost.values()})
        if not pods:
            return ()
        return (
            f"the kubelet has lost its record of {count(len(pods), 'running pod')} ({some(pods)}): they keep their "
            "GPUs, and one whose container cannot start again must be deleted and created again",
        )

    async def run(self) -> None:
        """Follow pods and the kubelet until cancelled."""
        await first(self._pods.run(), self._keep_settled(), self._keep_told())

    def explain(self, pod: str, waiting: GpuPod | None = None) -> tuple[str, ...]:
        found = self._pods.named(pod) or waiting
        if found is None:
            raise UserError(
                f"there is no pod {pod} on this node that has not ended; 'kubectl get pods -A -o wide' says where it "
                "is and whether it has ended, and its events why it was refused, if it was"
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
        marked = unhealthy_slices(
            self._slices_of(resource),
            self._book,
            held,
            spare,
            before=self._marked.get(resource, frozenset()),
            # A pod without a booking is refused: no pod is served by the kubelet's count alone.
            lags=self.settings.unassumed is Unassumed.REFUSE,
        )
        self._marked[resource] = marked
        return marked

    def held(self, resource: str) -> AbstractSet[str]:
        mine = (*self._answers.by_key.values(), *self._answers.lost.values())
        return frozenset(id for answer in mine if answer.key.resource == resource for id in answer.ids)

    def ended(self, uids: AbstractSet[str]) -> AbstractSet[str] | None:
        if (pods := self._known_pods) is None:
            return None
        return frozenset(uid for uid in uids if (pod := pods.get(uid)) is None or pod.is_finished)

    # --- what the kubelet asks -------------------------------------------------------------------

    async def allocate(self, resource: str, ids: Sequence[str]) -> Allocation:
        dialect = self.settings.dialect_of(resource)
        if dialect is None:
            raise Refused(f"this agent does not share GPUs as {resource}; see gpus.dialects")
        result = await self._search.answered(
            resource, partial(self._matched, dialect, ids), lambda: self._known_pods is not None
        )
        if isinstance(result, GpuRefusal):
            GPU_ANSWERS.labels(resource, "refused").inc()
            self._refuse(result)
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

    async def _matched(self, dialect: Dialect, ids: Sequence[str]) -> GpuMatch | GpuRefusal:
        """Match by what is known now; an answer is remembered before the next one is given."""
        async with self._lock:
            if (pods := self._known_pods) is None:
                return self._unheard()
            await self._settle()
            facts = ids, dialect, pods.values(), self._answers, self._inventory, self.settings
            self._refused &= pods.keys()
            claimants = await self._claimants.among(waiting_pods(*facts, self._refused))
            result = match(*facts, self._clock.monotonic(), claimants)
            if isinstance(result, GpuMatch):
                self._take(result.answers)
                reached("gpus.allocated")
            elif result.uid:
                self._refused.add(result.uid)
            return result

    def _unheard(self) -> GpuRefusal:
        return GpuRefusal(
            sentence=f"the API server has not told of the pods of this node: {self._why_not_heard()}",
            unknown=True,
        )

    async def prestart(self, resource: str, ids: Sequence[str]) -> None:
        """Let a container start by the kubelet's checkpoint; podresources must not contradict it."""
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
            raise Refused(f"{condemned[0].reason}; create it again")
        for answer in answers:
            self._check_gpus(answer)
            self._check_env(answer)
        await self._save_started()
        reached("gpus.proven")

    async def _save_started(self) -> None:
        """Save one at a time, each with what is known when it begins: an older state never replaces a newer one."""
        async with self._saving:
            deletions = self._notices.deletions
            await in_thread(lambda: self._started.save(self._answers.proven, self._answers.due, deletions))

    async def _proof(self, resource: str, ids: frozenset[str]) -> Sequence[GpuAnswer]:
        """The answers of the containers that hold these ids, proven or condemned; Refused where they are unknown."""
        why = "the kubelet's checkpoint names no pod of the API that holds its devices"
        with suppress(TimeoutError):
            async with deadline(self._clock, _PROOF_TIME):
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
        """Refused where podresources gives the pod other devices; one that does not list any says nothing."""
        told = await known_pods(self._paths, self._clock, [answer.pod])
        self._silent = told.silent or self._silent
        if (pod := told.pods.get(answer.pod)) is None:
            return
        listed = pod.containers.get(answer.key.container, {}).get(answer.key.resource)
        if listed and listed != answer.ids:
            raise Refused(
                f"podresources says that {answer.pod} holds other devices than the kubelet's checkpoint says; the "
                "kubelet tries again"
            )

    def _check_gpus(self, answer: GpuAnswer) -> None:
        """Refused where a container would restart with a GPU that was replaced: its runtime knows no such device."""
        gone = [uuid for uuid in answer.gpus if self._inventory.get(uuid) is None]
        if gone:
            sentence = (
                f"pod {visible(answer.pod)}: container {visible(answer.key.container)} was started with GPU "
                f"{visible(', '.join(gone))}, which is not on this node any more; delete the pod and create it again"
            )
            self._refuse(GpuRefusal(sentence=sentence, uid=answer.key.uid, key=answer.pod))

    def _check_env(self, answer: GpuAnswer) -> None:
        """Refused where the pod's own env goes before what the container was given: only its owner can mend that."""
        pod = (self._pods.pods or {}).get(answer.key.uid)
        if pod is None or answer.injected is None:
            return
        names = overridden(pod, answer.key.container, answer.injected, self.settings)
        if names:
            sentence = (
                f"pod {visible(answer.pod)}: the env of container {visible(answer.key.container)} sets "
                f"{visible(some(names))}, which the agent sets for its GPU; remove it from the pod's env and create "
                "the pod again"
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
        """Settle when pods change, the kubelet has asked, or from time to time; then announce and keep it."""
        await self._pods.synced()
        await self._recall()
        while True:
            pods, asked = self._pods.changed.count, self._asked.count
            self._take_keys()
            async with self._lock:
                await self._settle()
            if await self._claimants.look(self._known_pods or {}, self._answers, self.settings):
                self.changed.changed()
            if self._standing is not None and self._inventory.gpus:
                self._standing.take(self._holders(), self._absent())
            await self._save_started()
            self._settled.changed()
            await self._clock.sleep(_LEAST_GAP)
            await first(
                self._clock.sleep(self._refresh), self._pods.changed.beyond(pods), self._asked.beyond(asked)
            )

    async def _keep_told(self) -> None:
        """Tell and write to pods what was settled: an API server that is slow holds up no announcement."""
        seen = 0
        while True:
            await self._settled.beyond(seen)
            seen = self._settled.count
            await self._notices.see_to_all(
                self._answers, self._inventory, self.settings, self._standing, lambda: self._answers
            )

    def _take_keys(self) -> None:
        """Follow the file with the keys: a Secret may come late, and change."""
        keys = self.keys.read()
        if keys != self.settings.keys and (keys or self.keys.trouble):
            self.settings = msgspec.structs.replace(self.settings, keys=keys)

    async def _recall(self) -> None:
        """Go on with what an earlier life of the agent has announced: seals that it has seen, swaps under way."""
        if self._standing is not None and not self._has_recalled:
            self._answers = self._answers.recalling(await self._standing.recalled())
            self._has_recalled = True
            self._pods.changed.changed()  # Wakes all that wait for pods.

    @property
    def _known_pods(self) -> Mapping[str, GpuPod] | None:
        return self._pods.pods if self._has_recalled else None

    def _absent(self) -> tuple[str, ...]:
        pods = [
            pod for uid, pod in (self._known_pods or {}).items() if uid in self.not_run and not pod.is_mirror
        ]
        return tuple(pod.uid for pod in sorted(pods, key=lambda pod: (pod.created, pod.uid)))

    def _holders(self) -> Mapping[str, AnnouncedPod]:
        pods = self._known_pods or {}
        return holders(pods, self._answers, self._inventory, self.settings, self.not_run)

    async def _settle(self) -> tuple[GpuHolding, ...] | None:
        """Compare the answers with the records; None where the kubelet's cannot be read."""
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
        pods = self._known_pods
        self._records = GpuRecords(pods, holdings, str(kubelet or ""), self._pods.sealed_states)
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
        if pods is not None and self._inventory.gpus and self.settings.keys:
            self._pods.forget_states()  # Before that, no seal can be told from a tenant's words.
        return holdings

    def _take(self, answers: GpuAnswers, *, force: bool = False) -> None:
        """Remember the answers; log and count new verdicts."""
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
