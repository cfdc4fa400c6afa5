"""Whether the container that holds an answer is the one that it was meant for: the kubelet's own records tell.

What a container is started with is compared with what it should be. Where two pods were taken for each other and are
alike, they are swapped, and so are their annotations. Otherwise a container keeps a GPU that was meant for another if
there is room and it is as good as its own; any GPU satisfies a mere wish. What cannot be kept is condemned: the
kubelet keeps Allocate's answer for as long as the pod lives, so the pod must be created again. A container that has
run before is only restarting and keeps what it has, unless the kubelet has just asked for it again.

A condemned pod is spared unless it has the GPU or room of another pod that a scheduler of ours has booked: what an
owner does to his own pods never gets one deleted. A pod that is not booked is judged by what it was answered,
whatever its annotations say by now.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from colocate.errors import visible
from colocate.gpus.answers import (
    AnswerKey,
    AnswerState,
    GpuAnswer,
    GpuAnswers,
    asked_booking,
    reserved,
)
from colocate.gpus.book import PodBooking
from colocate.gpus.claims import DueGpus, GpuClaim
from colocate.gpus.injection import injected_gpus, injection, is_same
from colocate.gpus.pods import GpuAsk, GpuPod
from colocate.gpus.settings import GpuSettings
from colocate.model.device import Allocation
from colocate.model.gpu import GpuInventory


class GpuHolding(msgspec.Struct, frozen=True, kw_only=True):
    """What the kubelet says that one container holds."""

    key: AnswerKey
    pod: str = ""
    """namespace/name, where known."""
    ids: frozenset[str]
    injected: Allocation | None = None
    """What Allocate answered, as the kubelet keeps it; None where it cannot be read."""


Claims = Mapping[str, GpuClaim]
"""By uid, those of one dialect."""


def prove(
    held: GpuHolding,
    claims: Claims,
    answers: GpuAnswers,
    inventory: GpuInventory,
    settings: GpuSettings,
) -> GpuAnswers:
    """Decide about one holding whose pod is known; the answers with the verdict."""
    claim = claims[held.key.uid]
    ask = claim.ask(held.key.container)
    meant = _meant(held, ask, answers)
    answer = _held(held, claim, ask, meant, answers, inventory)
    condemned = partial(_condemned, answers, answer, meant, spared=not _is_of_booked(meant, held, claims))
    others = answers if meant is None or meant.key == held.key else answers.without([meant.key])
    if ask is None:
        # Of a pod from before there was a bound on its containers, not all are looked at: what runs keeps its own.
        if claim.asks.problem and has_started(held.key, claim.pod, answers) and not _is_new(meant):
            return others.having(_proven(answer))
        return condemned(f"it holds {len(held.ids)} of {held.key.resource} but asks for none")
    if lost := answers.lost.get(held.key):
        if answer.injected is not None and _fits_request(
            claim, ask, lost.gpus, injected=answer.injected, inventory=inventory, settings=settings
        ):
            return others.finding(_proven(answer))
        return condemned(_forgotten(lost, answer, meant))
    if has_started(held.key, claim.pod, answers) and not _is_new(meant):
        return others.having(_proven(answer))
    if answer.injected is None or not answer.gpus:
        return condemned("what it was given cannot be read back from the kubelet's checkpoint")
    due = claim.gpus(ask.container)
    fits = partial(
        _fits_request, claim, ask, injected=answer.injected, inventory=inventory, settings=settings
    )
    if _is_as_answered(held, claim, meant):
        if claim.problem or not fits(due or answer.gpus):
            others = others.with_due({(claim.uid, held.key.resource): _due_with(claim, ask, answer.gpus)})
    elif claim.problem or not fits(due or answer.gpus):
        partner = None if claim.problem else _partner(claim, answer, meant, claims, answers, inventory)
        if claim.problem or not fits(answer.gpus):
            return condemned(_mismatch(claim, due, answer, meant, inventory))
        if partner is not None:
            others = _swapped(answers, claim, partner).without([answer.key])
        elif has_started(held.key, claim.pod, answers) or (
            claim.wish.sealed and not _as_good(due, answer.gpus, inventory)
        ):
            return condemned(_mismatch(claim, due, answer, meant, inventory))
        else:
            others = others.with_due({(claim.uid, held.key.resource): _due_with(claim, ask, answer.gpus)})
    # Pods that a scheduler of ours has booked have their room already; others must leave it to them.
    if reason := _why_no_room(claim, ask, answer, claims, others, inventory, settings):
        firm = others.without(_mere_wishes(others, claims))
        in_doubt = not _why_no_room(claim, ask, answer, claims, firm, inventory, settings)
        own = meant is None or meant.key.uid == held.key.uid
        ends = _is_of_booked(meant, held, claims) or (
            own and _is_booked(answer, claims, others, inventory, settings)
        )
        return condemned(reason, spared=in_doubt or not ends)
    return others.having(_proven(answer))


def _is_of_booked(meant: GpuAnswer | None, held: GpuHolding, claims: Claims) -> bool:
    """Whether an answer was meant for another pod, which a scheduler of ours has booked."""
    if meant is None or meant.key.uid == held.key.uid:
        return False
    claim = claims.get(meant.key.uid)
    return claim is not None and claim.wish.sealed


def _is_booked(
    answer: GpuAnswer,
    claims: Claims,
    others: GpuAnswers,
    inventory: GpuInventory,
    settings: GpuSettings,
) -> bool:
    """Whether a scheduler of ours has booked a part of these GPUs for another pod, in whichever dialect."""
    pods = (each.pod for each in claims.values() if each.uid != answer.key.uid)
    booked = {uid for (uid, _), due in others.due.items() if due.sealed and uid != answer.key.uid}
    book = reserved(pods, others, others.book(inventory), settings)
    return any(uuid in pod.needs() for uid, pod in book.pods.items() if uid in booked for uuid in answer.gpus)


def _is_as_answered(held: GpuHolding, claim: GpuClaim, meant: GpuAnswer | None) -> bool:
    """Whether a container without a booking holds what it was itself answered: by its request at that time."""
    return (
        meant is not None
        and not claim.wish.sealed
        and meant.key == held.key
        and meant.state is AnswerState.GIVEN
        and meant.injected is not None
        and (held.injected is None or is_same(meant.injected, held.injected))
    )


def _mere_wishes(answers: GpuAnswers, claims: Claims) -> Sequence[AnswerKey]:
    """Answers that the kubelet has not been seen to hold, to pods that no scheduler of ours has booked."""
    return [
        each.key
        for each in answers
        if each.state is AnswerState.GIVEN
        and not ((claim := claims.get(each.key.uid)) is not None and claim.wish.sealed)
    ]


def _as_good(due: Sequence[str], gpus: Sequence[str], inventory: GpuInventory) -> bool:
    """Whether GPUs are of the kind of those that were booked."""
    kinds = [
        [gpu and (gpu.model, gpu.memory, gpu.healthy) for gpu in map(inventory.get, each)]
        for each in (due, gpus)
    ]
    return kinds[0] == kinds[1]


def _due_with(claim: GpuClaim, ask: GpuAsk, gpus: tuple[str, ...]) -> DueGpus:
    """What a pod is due, with these GPUs for one container; newer than its seal."""
    given = tuple(
        gpus if each.container == ask.container else others
        for each, others in zip(claim.asks.containers, claim.all_gpus, strict=True)
    )
    return DueGpus(gpus=given, number=claim.wish.number + 1 if claim.wish.sealed else 0)


def has_started(key: AnswerKey, pod: GpuPod, answers: GpuAnswers) -> bool:
    """Whether a container has been let start before: by this agent, or by the kubelet's own word."""
    return key in answers.started or pod.has_run(key.container)


def _is_new(meant: GpuAnswer | None) -> bool:
    """Whether this life of the agent gave the answer: a kubelet that has lost its records asks for all pods again.

    What a container has run with says nothing about such an answer.
    """
    return meant is not None and meant.state is AnswerState.GIVEN and meant.place > 0


def _meant(held: GpuHolding, ask: GpuAsk | None, answers: GpuAnswers) -> GpuAnswer | None:
    """The answer that the kubelet gave to this holder, which may have been meant for another container."""
    own = answers.by_key.get(held.key)
    if own is not None and own.ids == held.ids:
        return own
    same = [
        each
        for each in answers
        if each.key.resource == held.key.resource and each.ids == held.ids and each.state is AnswerState.GIVEN
    ]
    # An init container and one that it handed its ids on to have the same: the one like this, then.
    like = [each for each in same if ask is not None and (each.init, each.cores) == (ask.init, ask.cores)]
    return min(like or same, key=lambda each: each.place, default=None)


def _held(
    held: GpuHolding,
    claim: GpuClaim,
    ask: GpuAsk | None,
    meant: GpuAnswer | None,
    answers: GpuAnswers,
    inventory: GpuInventory,
) -> GpuAnswer:
    """The holding as an answer to its holder, with what was really injected."""
    injected = held.injected if held.injected is not None else (meant.injected if meant is not None else None)
    gpus = () if injected is None else injected_gpus(injected, claim.dialect, inventory)
    own = answers.by_key.get(held.key)
    return GpuAnswer(
        key=held.key,
        pod=claim.pod.key,
        ids=held.ids,
        gpus=gpus,
        memory=len(held.ids) * claim.dialect.unit,
        cores=ask.cores if ask is not None else 0,
        init=ask.init if ask is not None else False,
        sidecar=ask.sidecar if ask is not None else False,
        injected=injected,
        since=meant.since if meant is not None else (own.since if own is not None else 0.0),
        place=meant.place if meant is not None else (own.place if own is not None else 0),
    )


def _fits_request(
    claim: GpuClaim,
    ask: GpuAsk,
    gpus: Sequence[str],
    *,
    injected: Allocation,
    inventory: GpuInventory,
    settings: GpuSettings,
) -> bool:
    """Whether what a container got is what it gets with these GPUs."""
    found = [gpu for uuid in gpus if (gpu := inventory.get(uuid)) is not None]
    if len(found) != ask.count:
        return False
    expected = injection(claim.pod, ask, claim.asks.containers, found, claim.dialect, settings)
    return is_same(expected, injected)


def _why_no_room(
    claim: GpuClaim,
    ask: GpuAsk,
    answer: GpuAnswer,
    claims: Claims,
    others: GpuAnswers,
    inventory: GpuInventory,
    settings: GpuSettings,
) -> str:
    """Why a container cannot keep what it got beside all that others have or are due; empty where it can."""
    others = others.without([answer.key])
    book = others.book(inventory)
    # Of two bookings that exceed a GPU together, the earlier one keeps it.
    before = (each for each in claims.values() if not claim.wish.sealed or each.rank < claim.rank)
    pods = (each.pod for each in before if each.uid != claim.uid)
    kept = reserved(pods, others, book, settings)
    has = book.pods.get(claim.uid, PodBooking(uid=claim.uid, key=claim.pod.key))
    wanted = msgspec.structs.replace(has, containers=(*has.containers, asked_booking(ask, answer.gpus)))
    reason = kept.why_no_room(wanted)
    return f"it got a GPU that is booked for other pods ({reason})" if reason else ""


def _partner(
    claim: GpuClaim,
    answer: GpuAnswer,
    meant: GpuAnswer | None,
    claims: Claims,
    answers: GpuAnswers,
    inventory: GpuInventory,
) -> GpuClaim | None:
    """The pod that this one was taken for, where the two are alike."""
    first = [claims[meant.key.uid]] if meant is not None and meant.key.uid in claims else []
    place = next(
        (place for place, ask in enumerate(claim.asks.containers) if ask.container == answer.key.container),
        None,
    )
    if place is None:
        return None
    for other in (*first, *claims.values()):
        if other.uid == claim.uid or not are_alike(claim, other, answers, inventory):
            continue
        if other.all_gpus[place] == answer.gpus:
            return other
    return None


def are_alike(one: GpuClaim, other: GpuClaim, answers: GpuAnswers, inventory: GpuInventory) -> bool:
    """Whether two pods may have each other's GPUs: same requests, same kind of GPUs, neither has started."""
    if one.problem or other.problem or one.wish.sealed != other.wish.sealed:
        return False
    shapes = [[(ask.shape, ask.init, ask.sidecar) for ask in each.asks.containers] for each in (one, other)]
    if shapes[0] != shapes[1] or not all(one.all_gpus) or not all(other.all_gpus):
        return False
    if any(
        each.state is AnswerState.PROVEN and each.key.resource == one.dialect.memory
        for uid in (one.uid, other.uid)
        for each in answers.of_pod(uid)
    ) or any(key.uid in (one.uid, other.uid) for key in answers.lost):
        return False
    mine, theirs = ([uuid for gpus in each.all_gpus for uuid in gpus] for each in (one, other))
    return _as_good(mine, theirs, inventory)


def _swapped(answers: GpuAnswers, one: GpuClaim, other: GpuClaim) -> GpuAnswers:
    """Each pod with what the other was due and was given, container by container."""
    resource = one.dialect.memory
    names = {
        (claim.uid, mine.container): (partner, theirs.container)
        for claim, partner in ((one, other), (other, one))
        for mine, theirs in zip(claim.asks.containers, partner.asks.containers, strict=True)
    }
    moved: list[GpuAnswer] = []
    gone: list[AnswerKey] = []
    for answer in answers:
        to = names.get((answer.key.uid, answer.key.container))
        if to is not None and answer.key.resource == resource and answer.state is AnswerState.GIVEN:
            gone.append(answer.key)
            key = AnswerKey(to[0].uid, resource, to[1])
            moved.append(msgspec.structs.replace(answer, key=key, pod=to[0].pod.key))
    # Newer than what either of them was booked by, so that no older seal counts any more.
    number = max(one.wish.number, other.wish.number) + 1 if one.wish.sealed else 0
    due = {
        (each.uid, resource): DueGpus(gpus=partner.all_gpus, number=number)
        for each, partner in ((one, other), (other, one))
    }
    return answers.without(gone).having(*moved).with_due(due)


def _proven(answer: GpuAnswer) -> GpuAnswer:
    return msgspec.structs.replace(answer, state=AnswerState.PROVEN)


def _condemned(
    answers: GpuAnswers, answer: GpuAnswer, meant: GpuAnswer | None, reason: str, *, spared: bool
) -> GpuAnswers:
    """The holder must not start; the one that the answer was meant for has none yet."""
    if meant is not None and meant.key != answer.key:
        answers = answers.without([meant.key])
    elif meant is not None and meant.state is AnswerState.CONDEMNED:
        return answers  # Condemned already; the first verdict knew which container it was meant for.
    sentence = f"pod {visible(answer.pod)} must not start: {reason}"
    return answers.having(
        msgspec.structs.replace(answer, state=AnswerState.CONDEMNED, reason=sentence, spared=spared)
    )


def _forgotten(lost: GpuAnswer, answer: GpuAnswer, meant: GpuAnswer | None) -> str:
    got = ", ".join(visible(uuid)[:80] for uuid in answer.gpus) or "what cannot be read back"
    for_whom = f", which was meant for pod {visible(meant.pod)}" if meant and meant.key != lost.key else ""
    return (
        f"it ran with {', '.join(lost.gpus)}, the kubelet has lost its checkpoint, and would start it with "
        f"{got}{for_whom}"
    )


def _mismatch(
    claim: GpuClaim,
    due: Sequence[str],
    answer: GpuAnswer,
    meant: GpuAnswer | None,
    inventory: GpuInventory,
) -> str:
    got = ", ".join(visible(uuid)[:80] for uuid in answer.gpus)
    for_whom = ""
    if meant is not None and meant.key.uid != claim.uid:
        for_whom = f", which was meant for pod {visible(meant.pod)}"
    if claim.problem:
        return f"it was given {got}{for_whom}, and {claim.problem}"
    if any(inventory.get(uuid) is None for uuid in answer.gpus):
        return f"it was given {got}, which is not on this node any more"
    if tuple(due) == answer.gpus:
        return f"it was given its GPU {got} with figures of another request or of other settings{for_whom}"
    return f"its GPU is {', '.join(due) or 'not chosen'}, and it was given {got}{for_whom}"
