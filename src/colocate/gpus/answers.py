"""What Allocate was answered, and for which container: the state between a kubelet's questions. Values alone.

An answer is meant for one container. Whose it really was is known when the kubelet has written it down; then it is
proven, or condemned: the container that has it must not start.
"""

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

import msgspec

from colocate.gpus.book import ContainerBooking, GpuBook, PodBooking
from colocate.gpus.claims import DueGpus, Dues, GpuClaim, claim_of, claims_of
from colocate.gpus.pods import GpuAsk, GpuPod
from colocate.gpus.read_keys import SEAL
from colocate.gpus.settings import GpuSettings
from colocate.model.device import Allocation
from colocate.model.gpu import Cores, GpuInventory, Mebibytes


class AnswerState(StrEnum):
    """How sure it is which container has an answer."""

    GIVEN = "given"
    """Answered; the kubelet has not been seen to hold it."""
    PROVEN = "proven"
    """The container that holds it is the one that it is for."""
    CONDEMNED = "condemned"
    """The container that holds it is another, which must not start with it."""


class AnswerKey(msgspec.Struct, frozen=True, order=True):
    """A container and a resource of it."""

    uid: str
    resource: str
    container: str


class GpuAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What one container was given of one resource."""

    key: AnswerKey
    pod: str
    """namespace/name; empty where it is unknown."""
    ids: frozenset[str]
    gpus: tuple[str, ...]
    memory: Mebibytes
    cores: Cores = 0
    init: bool = False
    sidecar: bool = False
    injected: Allocation | None = None
    """What the container is started with; None where it cannot be read back."""
    state: AnswerState = AnswerState.GIVEN
    reason: str = ""
    """Why it is condemned."""
    spared: bool = False
    """Condemned, but not for the sake of another pod that a scheduler of ours has booked: its pod is not deleted, and
    is judged again."""
    since: float = 0.0
    """When it was given, in seconds of a clock that never goes back."""
    place: int = 0
    """How many answers were given before this one."""

    @property
    def is_booked(self) -> bool:
        """Whether memory is kept for it: one that must not start needs none."""
        return self.state is not AnswerState.CONDEMNED

    @property
    def hands_on(self) -> bool:
        """Whether the kubelet gives its ids to containers of its pod that start later."""
        return self.init and not self.sidecar

    def booking(self) -> ContainerBooking:
        return ContainerBooking(
            container=self.key.container,
            gpus=self.gpus,
            memory=self.memory,
            cores=self.cores,
            init=self.init,
            sidecar=self.sidecar,
        )


class GpuAnswers(msgspec.Struct, frozen=True):
    """All answers of one node."""

    by_key: Mapping[AnswerKey, GpuAnswer] = {}
    due: Dues = {}
    """What pods get whatever their annotations say by now: sealed bookings that were seen, and swaps."""
    given: int = 0
    """How many answers there ever were."""
    started: frozenset[AnswerKey] = frozenset()
    """Containers that an earlier life of the agent has let start: they keep what they have."""
    lost: Mapping[AnswerKey, GpuAnswer] = {}
    """Proven ones that a kubelet has forgotten, with its checkpoint: their containers run on what they have."""
    kubelet: str = ""
    """The kubelet whose records the answers were last compared with."""

    @property
    def proven(self) -> frozenset[AnswerKey]:
        """Containers that were let start, now or before: what outlives this life."""
        proven = {each.key for each in self if each.state is AnswerState.PROVEN}
        return self.started | proven | self.lost.keys()

    def __iter__(self) -> Iterator[GpuAnswer]:
        return iter(self.by_key.values())

    def get(self, claim: GpuClaim, ask: GpuAsk) -> GpuAnswer | None:
        """What a container has: what it was answered last, or what it runs with and the kubelet has forgotten."""
        key = AnswerKey(claim.uid, claim.dialect.memory, ask.container)
        return self.by_key.get(key) or self.lost.get(key)

    def of_pod(self, uid: str) -> list[GpuAnswer]:
        return [each for each in self if each.key.uid == uid]

    def having(self, *answers: GpuAnswer) -> "GpuAnswers":
        by_key = {**self.by_key, **{each.key: each for each in answers}}
        return msgspec.structs.replace(self, by_key=by_key)

    def without(self, keys: Iterable[AnswerKey]) -> "GpuAnswers":
        gone = set(keys)
        if not gone:
            return self
        by_key = {key: answer for key, answer in self.by_key.items() if key not in gone}
        return msgspec.structs.replace(self, by_key=by_key)

    def losing(self, keys: Iterable[AnswerKey]) -> "GpuAnswers":
        """The kubelet has forgotten these."""
        lost = {key: self.by_key[key] for key in keys}
        if not lost:
            return self
        return msgspec.structs.replace(self.without(lost), lost={**self.lost, **lost})

    def finding(self, answer: GpuAnswer) -> "GpuAnswers":
        """The kubelet holds again what one of the lost has."""
        lost = {key: each for key, each in self.lost.items() if key != answer.key}
        return msgspec.structs.replace(self.having(answer), lost=lost)

    def with_due(self, due: Dues) -> "GpuAnswers":
        return msgspec.structs.replace(self, due={**self.due, **due})

    def recalling(self, due: Dues) -> "GpuAnswers":
        """With what an earlier life has announced, where that is newer."""
        newer = {key: each for key, each in due.items() if each.number > self.number_of(key)}
        return self.with_due(newer) if newer else self

    def number_of(self, key: tuple[str, str]) -> int:
        """Number of the seal that is known for a pod and resource; lower than any other where there is none."""
        known = self.due.get(key)
        return known.number if known is not None else -1

    def book(self, inventory: GpuInventory) -> GpuBook:
        """Who has what by these answers."""
        return GpuBook.of_gpus(inventory, map(pod_booking, self._by_pod().values()))

    def _by_pod(self) -> Mapping[str, list[GpuAnswer]]:
        booked = {answer.key: answer for answer in self if answer.is_booked}
        by_pod: dict[str, list[GpuAnswer]] = {}
        for answer in {**self.lost, **booked}.values() if self.lost else booked.values():
            by_pod.setdefault(answer.key.uid, []).append(answer)
        return by_pod


def pod_booking(answers: Iterable[GpuAnswer]) -> PodBooking:
    """What one pod has by its answers, in the order in which they were given: that of its containers."""
    mine = sorted((each for each in answers if each.is_booked), key=lambda each: each.place)
    uid = mine[0].key.uid if mine else ""
    return PodBooking(
        uid=uid,
        key=next((each.pod for each in mine if each.pod), ""),
        containers=tuple(each.booking() for each in mine),
    )


def asked_booking(ask: GpuAsk, gpus: tuple[str, ...]) -> ContainerBooking:
    """What a container would have."""
    return ContainerBooking(
        container=ask.container,
        gpus=gpus,
        memory=ask.memory,
        cores=ask.cores,
        init=ask.init,
        sidecar=ask.sidecar,
    )


def claimed_booking(claim: GpuClaim, answers: GpuAnswers, book: GpuBook) -> PodBooking:
    """What a pod has, in every dialect, and what it is due beside that."""
    has = book.pods.get(claim.uid, PodBooking(uid=claim.uid, key=claim.pod.key))
    waiting = [
        asked_booking(ask, gpus)
        for ask, gpus in zip(claim.asks.containers, claim.all_gpus, strict=True)
        if gpus and answers.get(claim, ask) is None
    ]
    return msgspec.structs.replace(has, containers=(*has.containers, *waiting))


def remembering(
    answers: GpuAnswers, pods: Iterable[GpuPod], inventory: GpuInventory, settings: GpuSettings
) -> GpuAnswers:
    """With the bookings that a scheduler of ours has sealed: a tenant who changes his pod since changes none of them,
    nor does an older seal that he has kept. `pods` may hold several states of one pod, in the order of time."""
    seen: dict[tuple[str, str], DueGpus] = {}
    known = ChainMap(seen, dict(answers.due))
    for pod in pods if settings.keys else ():
        if SEAL not in pod.annotations or pod.is_ending:
            continue
        for dialect in settings.dialects:
            claim = claim_of(pod, dialect, inventory, settings, known)
            if claim is not None and claim.due is None and claim.wish.sealed:
                seen[pod.uid, dialect.memory] = DueGpus(gpus=claim.all_gpus, number=claim.wish.number)
    return answers.with_due(seen) if seen else answers


def reserved(pods: Iterable[GpuPod], answers: GpuAnswers, book: GpuBook, settings: GpuSettings) -> GpuBook:
    """The book with what a scheduler of ours has booked, in any dialect, for pods that have not asked for it yet.

    In the order of booking, and only what still fits: of two that exceed a GPU together, the earlier one starts.
    """
    known = {uid for (uid, _), due in answers.due.items() if due.sealed}
    sealed = [pod for pod in pods if pod.uid in known or (settings.keys and SEAL in pod.annotations)]
    for dialect in settings.dialects:
        for claim in claims_of(sealed, dialect, book.inventory, settings, answers.due).values():
            if not claim.wish.sealed or claim.problem:
                continue
            booking = claimed_booking(claim, answers, book)
            if not book.why_no_room(booking):
                book = book.record(booking)
    return book
