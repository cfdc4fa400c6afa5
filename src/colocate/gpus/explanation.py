"""Why a pod has the GPUs that it has, or none: what it asks for, what it wishes, what it was given, what is free."""

from collections.abc import Iterator, Sequence

from colocate.errors import visible
from colocate.gpus.answers import AnswerState, GpuAnswers, asked_booking, claimed_booking, reserved
from colocate.gpus.book import GpuBook, PodBooking
from colocate.gpus.claims import GpuClaim, claim_of
from colocate.gpus.dialects import Dialect
from colocate.gpus.pods import GpuAsk, GpuPod, counted_in_limits
from colocate.gpus.settings import GpuSettings, Unassumed
from colocate.model.figures import amount, count
from colocate.model.gpu import CORES, GpuInventory


def explain_pod(
    pod: GpuPod,
    pods: Sequence[GpuPod],
    answers: GpuAnswers,
    inventory: GpuInventory,
    settings: GpuSettings,
) -> tuple[str, ...]:
    """Sentence by sentence; `pods` are all of the node."""
    sentences: list[str] = []
    for dialect in settings.dialects:
        claim = claim_of(pod, dialect, inventory, settings, answers.due)
        if claim is not None:
            sentences += _of_dialect(claim, pods, answers, inventory, settings)
    if sentences and not pod.spec.node_name:
        scheduler = pod.spec.scheduler_name or "default-scheduler"
        sentences.insert(
            0,
            f"It has no node yet: {scheduler} has to choose one, and its events say what that waits for. On this "
            "node, this would happen to it:",
        )
    if not sentences:
        names = ", ".join(dialect.memory for dialect in settings.dialects)
        sentences.append(f"{pod.key} asks for nothing that this agent serves ({names}).")
    if pod.is_ending:
        sentences.append(
            "It has ended or is ending: what it has comes back when the kubelet lets go of it. If it was refused, "
            "its events say why."
        )
    return tuple(map(visible, sentences))


def _of_dialect(
    claim: GpuClaim,
    pods: Sequence[GpuPod],
    answers: GpuAnswers,
    inventory: GpuInventory,
    settings: GpuSettings,
) -> Iterator[str]:
    dialect = claim.dialect
    for ask in claim.asks.containers:
        yield f"Container {ask.container} asks for {_asked(ask, dialect)}."
    if claim.asks.problem:
        yield f"It cannot be served: {claim.asks.problem}."
    else:
        yield from _wish(claim, settings)
    if cost := counted_in_limits(claim.pod, dialect):
        yield f"What it could spare others: {cost}."
    if dialect.drains:
        yield f"{dialect.memory} drains on this node: what pods hold stays theirs, and nothing new is given."
    book = answers.book(inventory)
    waiting: list[GpuAsk] = []
    for ask in claim.asks.containers:
        answer = answers.get(claim, ask)
        if answer is None:
            waiting.append(ask)
        elif answer.state is AnswerState.CONDEMNED:
            yield f"Container {ask.container} is refused: {answer.reason}; only a new pod gets another answer."
        else:
            proof = (
                "proven" if answer.state is AnswerState.PROVEN else "not proven yet by the kubelet's records"
            )
            gpus = ", ".join(answer.gpus) or "an unknown GPU"
            yield f"Container {ask.container} has {gpus}: {amount(answer.memory << 20)}, {proof}."
    if waiting and not claim.problem and not claim.pod.is_ending:
        yield from _waiting(claim, waiting, pods, answers, book, inventory, settings)


def _asked(ask: GpuAsk, dialect: Dialect) -> str:
    cores = f" and {ask.cores} of {CORES} cores" if ask.cores else ""
    each = f" of each of {ask.count} GPUs" if ask.count > 1 else ""
    return f"{ask.units} of {dialect.memory}, which is {amount(ask.memory << 20)}{cores}{each}"


def _wish(claim: GpuClaim, settings: GpuSettings) -> Iterator[str]:
    wish = claim.wish
    if wish.problem:
        yield f"It cannot be served: {wish.problem}."
        return
    if not wish.is_booked:
        chooser = "the agent chooses" if settings.unassumed is Unassumed.SERVE else "it is refused"
        yield f"No scheduler has named a GPU in its annotation {wish.keys.gpus}: {chooser}."
        return
    gpus = "; ".join(", ".join(each) for each in wish.gpus)
    who = "A scheduler with the key of this cluster" if wish.sealed else "Its annotation"
    yield f"{who} names {gpus} ({wish.keys.gpus})."
    if wish.assume_time is None:
        yield f"It has no usable {wish.keys.assume_time}: pods that have one go first."


def _waiting(
    claim: GpuClaim,
    waiting: Sequence[GpuAsk],
    pods: Sequence[GpuPod],
    answers: GpuAnswers,
    book: GpuBook,
    inventory: GpuInventory,
    settings: GpuSettings,
) -> Iterator[str]:
    names = ", ".join(ask.container for ask in waiting)
    yield f"The kubelet has not asked for {names} yet."
    others = [pod for pod in pods if pod.uid != claim.uid]
    kept = reserved(others, answers, book, settings)
    if claim.wish.is_booked:
        reason = kept.why_not(claimed_booking(claim, answers, book))
        yield f"Asked now, it would be refused: {reason}." if reason else "Asked now, it would be served."
        return
    for ask in waiting:
        fitting = [
            gpu.uuid
            for gpu in inventory.shared
            if not kept.why_not(PodBooking(uid=claim.uid, containers=(asked_booking(ask, (gpu.uuid,)),)))
        ]
        if len(fitting) < ask.count:
            most = max((kept.offered(gpu.uuid).memory for gpu in inventory.shared), default=0)
            yield (
                f"Asked now, {ask.container} would be refused: {count(len(fitting), 'GPU')} with room for it; the "
                f"largest free piece is {amount(most << 20)}."
            )
        else:
            yield f"Asked now, {ask.container} would be served: {count(len(fitting), 'GPU')} with room for it."
