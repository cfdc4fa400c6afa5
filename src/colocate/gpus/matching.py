"""Which pod an Allocate is for, and which GPU it gets. Allocate carries ids and no name: this is the best guess.

The kubelet admits pod after pod, container after container, and its ids tell who has ended. Pods that cannot be
served are passed over for those that can, and where the kubelet says which pod it admits, no other is looked at. A
wrong guess costs nothing, for `proof` looks at what came of it before any container starts. An annotation is a wish
and never takes more than its GPU has free, without what a scheduler of ours has booked for others.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from colocate.errors import visible
from colocate.gpus.answers import (
    AnswerKey,
    AnswerState,
    GpuAnswer,
    GpuAnswers,
    asked_booking,
    claimed_booking,
    reserved,
)
from colocate.gpus.book import GpuBook, PodBooking
from colocate.gpus.claims import GpuClaim, claims_of
from colocate.gpus.dialects import Dialect
from colocate.gpus.injection import injection
from colocate.gpus.pods import GpuAsk, GpuPod
from colocate.gpus.settings import GpuSettings
from colocate.model.gpu import Gpu, GpuInventory


class GpuMatch(msgspec.Struct, frozen=True):
    """An Allocate answered."""

    answer: GpuAnswer
    answers: GpuAnswers
    """All answers, this one included."""


class GpuRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """An Allocate that cannot be answered, or a container that must not start."""

    sentence: str
    """What was found and what to do about it, for the pod's event."""
    uid: str = ""
    """The pod that is refused; empty where it is unknown."""
    key: str = ""
    """Its namespace/name."""
    unknown: bool = False
    """No pod asks for this: a watch that is behind may know it in a moment."""


class _Candidate(msgspec.Struct, frozen=True):
    claim: GpuClaim
    ask: GpuAsk


def match(
    ids: Collection[str],
    dialect: Dialect,
    pods: Iterable[GpuPod],
    answers: GpuAnswers,
    inventory: GpuInventory,
    settings: GpuSettings,
    now: float = 0.0,
    claimants: Collection[str] | None = None,
) -> GpuMatch | GpuRefusal:
    """Answer an Allocate of these ids; `now` is of any clock that never goes back.

    `pods` are those of this node, in the order in which they were heard of: the kubelet hears of them in the same.
    `claimants` are the uids of those that may wait for it, by the kubelet's word; None where it has not said.
    """
    taken, pods = frozenset(ids), list(pods)
    answers, handed_on = _ended(answers, dialect, taken)
    claims = claims_of(pods, dialect, inventory, settings, answers.due)
    waiting = _in_order(_waiting(claims.values(), answers, len(taken)), answers, handed_on)
    if claimants is not None:
        waiting = [each for each in waiting if each.claim.uid in claimants]
    book = answers.book(inventory)
    kept = reserved(pods, answers, book, settings)
    wished = _wished(claims.values(), answers)
    why: GpuRefusal | None = None
    for candidate in waiting:
        gpus, reason = _gpus(candidate, answers, book, kept, wished)
        if not reason:
            return _match(candidate, gpus, taken, answers, inventory, settings, now)
        why = why or _refusal(candidate.claim, reason)
    # A kubelet that has lost its checkpoint may ask once more for what runs: it keeps the GPUs that it runs with.
    lost = min(
        _lost(claims.values(), answers, len(taken)), key=lambda each: each.claim.pod.created, default=None
    )
    if lost is not None and (has := answers.get(lost.claim, lost.ask)):
        return _match(lost, has.gpus, taken, answers, inventory, settings, now)
    for candidate in _in_order(_given(claims.values(), answers, len(taken)), answers, handed_on):
        given = answers.get(candidate.claim, candidate.ask)
        if given is not None and not kept.why_not(claimed_booking(candidate.claim, answers, book)):
            return _match(candidate, given.gpus, taken, answers, inventory, settings, now)
    return why or _nobody(dialect, len(taken), claims)


def waiting_pods(
    ids: Collection[str],
    dialect: Dialect,
    pods: Iterable[GpuPod],
    answers: GpuAnswers,
    inventory: GpuInventory,
    settings: GpuSettings,
    refused: Collection[str] = (),
) -> Sequence[GpuPod]:
    """The pods that an Allocate of these ids may be for, the likeliest first; those that have run before last.

    Pods that cannot be served, and `refused` ones, come after all others: a kubelet still knows a pod that it has
    refused, and does not ask for it again.
    """
    answers, handed_on = _ended(answers, dialect, frozenset(ids))
    claims = claims_of(pods, dialect, inventory, settings, answers.due)
    waiting = _in_order(_waiting(claims.values(), answers, len(ids)), answers, handed_on)

    def last(each: _Candidate) -> tuple[bool, bool]:
        claim = each.claim
        return bool(claim.problem) or claim.uid in refused, claim.pod.has_run(each.ask.container)

    return [each.claim.pod for each in sorted(waiting, key=last)]


def _ended(answers: GpuAnswers, dialect: Dialect, ids: frozenset[str]) -> tuple[GpuAnswers, frozenset[str]]:
    """Without answers whose ids the kubelet gives out again; and the pods whose init containers may pass theirs
    on."""
    met = [each for each in answers if each.key.resource == dialect.memory and each.ids & ids]
    handed_on = frozenset(each.key.uid for each in met if each.hands_on)
    return answers.without(each.key for each in met if not each.hands_on), handed_on


def _waiting(claims: Iterable[GpuClaim], answers: GpuAnswers, units: int) -> Iterable[_Candidate]:
    """Of each pod the first container that asks for so much and has no answer."""
    for claim in claims:
        for ask in claim.asks.containers:
            if ask.units == units and answers.get(claim, ask) is None:
                yield _Candidate(claim, ask)
                break


def _lost(claims: Iterable[GpuClaim], answers: GpuAnswers, units: int) -> Iterable[_Candidate]:
    """Containers that run, that the kubelet has forgotten, and that have no new answer."""
    for claim in claims:
        for ask in claim.asks.containers:
            key = AnswerKey(claim.uid, claim.dialect.memory, ask.container)
            if ask.units == units and key in answers.lost and key not in answers.by_key:
                yield _Candidate(claim, ask)


def _given(claims: Iterable[GpuClaim], answers: GpuAnswers, units: int) -> Iterable[_Candidate]:
    """Containers whose answer the kubelet may never have seen: it asks once more."""
    for claim in claims:
        for ask in claim.asks.containers:
            given = answers.get(claim, ask)
            if ask.units == units and given is not None and given.state is AnswerState.GIVEN:
                yield _Candidate(claim, ask)


def _in_order(
    candidates: Iterable[_Candidate], answers: GpuAnswers, handed_on: Collection[str]
) -> Sequence[_Candidate]:
    """Of equals, the pod goes on whose ids these were, or that was asked for last: kubelets admit pod by pod."""
    last = max(answers, key=lambda each: each.place, default=None)
    current = last.key.uid if last is not None and last.state is not AnswerState.CONDEMNED else ""

    def rank(candidate: _Candidate) -> tuple[object, ...]:
        claim = candidate.claim
        return claim.rank[0], claim.uid not in handed_on, claim.uid != current, *claim.rank[1:]

    return sorted(candidates, key=rank)


def _wished(claims: Iterable[GpuClaim], answers: GpuAnswers) -> Mapping[str, int]:
    """By GPU, the memory that containers without an answer wish for: left to them where there is a choice."""
    wished: dict[str, int] = {}
    for claim in claims:
        if claim.problem or claim.wish.sealed:
            continue
        for ask, gpus in zip(claim.asks.containers, claim.all_gpus, strict=True):
            if gpus and answers.get(claim, ask) is None:
                for uuid in gpus:
                    wished[uuid] = wished.get(uuid, 0) + ask.memory
    return wished


def _gpus(
    candidate: _Candidate, answers: GpuAnswers, book: GpuBook, kept: GpuBook, wished: Mapping[str, int]
) -> tuple[tuple[str, ...], str]:
    """The GPUs that a container would get, or why it gets none."""
    claim, ask = candidate.claim, candidate.ask
    if claim.problem:
        return (), claim.problem
    if claim.dialect.drains and not answers.of_pod(claim.uid):
        return (), (
            f"{claim.dialect.memory} drains on this node, and nothing new is given under this name; ask for the "
            "resource that is offered in its place ('colocate gpu units' prints what to write)"
        )
    due = claim.gpus(ask.container)
    if due:
        return due, kept.why_not(claimed_booking(claim, answers, book))
    return _chosen(claim, ask, book, kept, wished)


def _chosen(
    claim: GpuClaim, ask: GpuAsk, book: GpuBook, kept: GpuBook, wished: Mapping[str, int]
) -> tuple[tuple[str, ...], str]:
    """The GPUs with the least room that fit, those first that the pod has already; or why there are none."""
    has = book.pods.get(claim.uid, PodBooking(uid=claim.uid, key=claim.pod.key))
    mine = {uuid for each in has.containers for uuid in each.gpus}
    fitting: list[Gpu] = []
    for gpu in kept.inventory.shared:
        wanted = msgspec.structs.replace(has, containers=(*has.containers, asked_booking(ask, (gpu.uuid,))))
        if not kept.why_not(wanted):
            fitting.append(gpu)
    if len(fitting) < ask.count:
        return (), _no_room(ask, kept)

    def rank(gpu: Gpu) -> tuple[bool, bool, int, int]:
        room = kept.free(gpu.uuid).memory
        taken_from_others = room - ask.memory < wished.get(gpu.uuid, 0)
        return gpu.uuid not in mine, taken_from_others, room, gpu.index

    fitting.sort(key=rank)
    return tuple(gpu.uuid for gpu in _alike(fitting, ask.count)), ""


def _alike(fitting: Sequence[Gpu], count: int) -> Sequence[Gpu]:
    """The first `count` GPUs of one model where there are enough; otherwise of several models."""
    for first in fitting if count > 1 else ():
        same = [gpu for gpu in fitting if gpu.model == first.model]
        if len(same) >= count:
            return same[:count]
    return fitting[:count]


def _no_room(ask: GpuAsk, kept: GpuBook) -> str:
    offers = [(gpu, kept.offered(gpu.uuid)) for gpu in kept.inventory.shared]
    told = "; ".join(
        f"{gpu.uuid} {room.memory} MiB and {room.cores} cores" if gpu.healthy else f"{gpu.uuid} not healthy"
        for gpu, room in offers[:8]
    )
    gpus = "one GPU" if ask.count == 1 else f"each of {ask.count} GPUs"
    cores = f" and {ask.cores} cores" if ask.cores else ""
    return (
        f"it asks for {ask.memory} MiB{cores} of {gpus}, and this node has free, beside what is booked for other "
        f"pods: {told or 'no GPU to share'}; ask for less, or wait until a pod ends"
    )


def _match(
    candidate: _Candidate,
    gpus: tuple[str, ...],
    ids: frozenset[str],
    answers: GpuAnswers,
    inventory: GpuInventory,
    settings: GpuSettings,
    now: float,
) -> GpuMatch:
    claim, ask = candidate.claim, candidate.ask
    found = [gpu for uuid in gpus if (gpu := inventory.get(uuid)) is not None]
    answer = GpuAnswer(
        key=AnswerKey(claim.uid, claim.dialect.memory, ask.container),
        pod=claim.pod.key,
        ids=ids,
        gpus=gpus,
        memory=ask.memory,
        cores=ask.cores,
        init=ask.init,
        sidecar=ask.sidecar,
        injected=injection(claim.pod, ask, claim.asks.containers, found, claim.dialect, settings),
        since=now,
        place=answers.given + 1,
    )
    given = msgspec.structs.replace(answers.having(answer), given=answers.given + 1)
    return GpuMatch(answer, given)


def _refusal(claim: GpuClaim, reason: str) -> GpuRefusal:
    return GpuRefusal(sentence=f"pod {visible(claim.pod.key)}: {reason}", uid=claim.uid, key=claim.pod.key)


def _nobody(dialect: Dialect, units: int, claims: Mapping[str, GpuClaim]) -> GpuRefusal:
    asking = sorted(
        {ask.units for claim in claims.values() for ask in claim.asks.containers if ask.units != units}
    )
    others = f" (others ask for {', '.join(map(str, asking[:8]))})" if asking else ""
    return GpuRefusal(
        sentence=(
            f"no pod of this node that the agent knows of waits for {units} of {dialect.memory}{others}: it was "
            "deleted meanwhile, or the agent's watch of the API server is behind; create the pod again"
        ),
        unknown=True,
    )
