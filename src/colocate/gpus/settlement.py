"""Answers against what the kubelet has written down: whose each is, which have ended, which it never took.

Run before every Allocate, in every PreStartContainer and from time to time, in the same way each time: a start after
a crash is no special case. Where the kubelet or the API is silent, what was known stays.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import product

import msgspec

from colocate.gpus.answers import AnswerKey, AnswerState, GpuAnswer, GpuAnswers, remembering
from colocate.gpus.claims import claims_of
from colocate.gpus.injection import injected_gpus
from colocate.gpus.pods import GpuPod, asks_of
from colocate.gpus.proof import Claims, GpuHolding, has_started, prove
from colocate.gpus.settings import GpuSettings
from colocate.model.gpu import GpuInventory

GRACE = 60.0
"""Seconds within which the kubelet is seen to hold what it was given."""


class GpuRecords(msgspec.Struct, frozen=True):
    """What the kubelet and the API say of one node; None where they are silent."""

    pods: Mapping[str, GpuPod] | None = None
    """By uid, all that are bound to this node."""
    holdings: tuple[GpuHolding, ...] | None = None
    kubelet: str = ""
    """The kubelet that writes the records: a new one after every restart. Empty where it is unknown."""
    passed: tuple[GpuPod, ...] = ()
    """States with a seal that pods were in since the last settlement, in the order of time."""


def settle(
    records: GpuRecords,
    answers: GpuAnswers,
    inventory: GpuInventory,
    settings: GpuSettings,
    now: float,
    *,
    gpu_of: Callable[[str], str | None] = lambda _: None,
    grace: float = GRACE,
) -> GpuAnswers:
    """The answers as they stand by these records; `gpu_of` says which GPU an id is named after."""
    pods = records.pods or {}
    gone = {uid for uid in _uids(records, answers) if _is_gone(uid, records)}
    answers = _without_memory(_cleared(answers, records, gone, now, grace), records)
    passed = (pod for pod in records.passed if pod.uid in pods)
    answers = remembering(answers, (*passed, *pods.values()), inventory, settings)
    # In every dialect, containers that run or end and unknown pods come first: they have their memory, whatever
    # others were told.
    for sure, dialect in product((True, False), settings.dialects):
        held = [
            each
            for each in records.holdings or ()
            if each.key.resource == dialect.memory
            and each.key.uid not in gone
            and not _is_settled(each, answers)
            if _is_sure(each, pods, answers) is sure
        ]
        held.sort(key=lambda each: _place(each, pods, settings))
        claims: Claims | None = None
        for each in held:
            if _is_settled(each, answers):
                continue  # A swap has just settled it.
            if claims is None:
                claims = claims_of(pods.values(), dialect, inventory, settings, answers.due)
            if each.key.uid not in claims:
                answers = _recorded(each, answers, pods, inventory, settings, gpu_of)
                continue
            due = answers.due
            answers = prove(each, claims, answers, inventory, settings)
            if answers.due is not due:
                claims = None
    return answers


def _is_settled(held: GpuHolding, answers: GpuAnswers) -> bool:
    known = answers.by_key.get(held.key)
    if known is None or known.ids != held.ids or known.state is AnswerState.GIVEN:
        return False
    return not known.spared


def _uids(records: GpuRecords, answers: GpuAnswers) -> Iterable[str]:
    held = (each.key.uid for each in records.holdings or ())
    started = (key.uid for key in (*answers.started, *answers.lost))
    return {*(each.key.uid for each in answers), *held, *(uid for uid, _ in answers.due), *started}


def _is_gone(uid: str, records: GpuRecords) -> bool:
    """Whether a pod has ended: the API says so, or does not know it. An API that is silent says nothing."""
    if records.pods is None:
        return False
    pod = records.pods.get(uid)
    return pod is None or pod.is_finished


def _cleared(
    answers: GpuAnswers, records: GpuRecords, gone: set[str], now: float, grace: float
) -> GpuAnswers:
    """Without those of pods that have ended, and those that the kubelet does not hold and will not."""
    held = None if records.holdings is None else {(each.key, each.ids) for each in records.holdings}
    ids = None if held is None else {each.ids for each in records.holdings or ()}
    ended: list[AnswerKey] = []
    for answer in answers:
        if answer.key.uid in gone:
            ended.append(answer.key)
        elif held is None or (answer.key, answer.ids) in held:
            continue
        elif answer.state is AnswerState.CONDEMNED or (
            answer.state is AnswerState.GIVEN and now - answer.since > grace and answer.ids not in (ids or ())
        ):
            ended.append(answer.key)
        # A proven one is that of a pod that lives: a kubelet that has lost its checkpoint does not end it.
    kept = {key: due for key, due in answers.due.items() if key[0] not in gone}
    started = frozenset(key for key in answers.started if key.uid not in gone)
    lost = {key: each for key, each in answers.lost.items() if key.uid not in gone}
    sizes = len(answers.due), len(answers.started), len(answers.lost)
    if (len(kept), len(started), len(lost)) != sizes:
        answers = msgspec.structs.replace(answers, due=kept, started=started, lost=lost)
    return answers.without(ended)


def _without_memory(answers: GpuAnswers, records: GpuRecords) -> GpuAnswers:
    """Mark proven answers as lost where a new kubelet has no record of them: it had no checkpoint to read.

    From the same kubelet, a missing record means that the pod has ended, which the API is about to tell, too.
    """
    if records.holdings is None or not records.kubelet or records.kubelet == answers.kubelet:
        return answers
    held = {each.key for each in records.holdings}
    if answers.kubelet:
        proven = (each.key for each in answers if each.state is AnswerState.PROVEN)
        answers = answers.losing([key for key in proven if key not in held])
    return msgspec.structs.replace(answers, kubelet=records.kubelet)


def _recorded(
    held: GpuHolding,
    answers: GpuAnswers,
    pods: Mapping[str, GpuPod],
    inventory: GpuInventory,
    settings: GpuSettings,
    gpu_of: Callable[[str], str | None],
) -> GpuAnswers:
    """What is held by a pod that is ending or that the API has not told of: it counts, and nothing is judged."""
    dialect = settings.dialect_of(held.key.resource)
    known = answers.by_key.get(held.key)
    if dialect is None or (known is not None and known.ids == held.ids):
        return answers
    meant = [each.key for each in answers if each.ids == held.ids and each.state is AnswerState.GIVEN]
    gpus: tuple[str, ...] = ()
    if held.injected is not None:
        gpus = injected_gpus(held.injected, dialect, inventory)
    if not gpus:
        gpus = tuple(sorted({gpu for id in held.ids if (gpu := gpu_of(id)) is not None}))
    pod = pods.get(held.key.uid)
    asks = asks_of(pod, dialect).containers if pod is not None else ()
    ask = next((each for each in asks if each.container == held.key.container), None)
    found = GpuAnswer(
        key=held.key,
        pod=held.pod or (pod.key if pod is not None else ""),
        ids=held.ids,
        gpus=gpus,
        memory=len(held.ids) * dialect.unit,
        cores=ask.cores if ask is not None else 0,
        init=ask is not None and ask.init,
        sidecar=ask is not None and ask.sidecar,
        injected=held.injected,
    )
    # The container that it was meant for did not get it.
    return answers.without(key for key in meant if key.uid != held.key.uid).having(found)


def _is_sure(held: GpuHolding, pods: Mapping[str, GpuPod], answers: GpuAnswers) -> bool:
    """Whether what is held counts even if another pod is due it."""
    pod = pods.get(held.key.uid)
    return pod is None or pod.is_ending or has_started(held.key, pod, answers)


def _place(held: GpuHolding, pods: Mapping[str, GpuPod], settings: GpuSettings) -> tuple[str, int]:
    """By pod, in the order of its containers."""
    pod, dialect = pods.get(held.key.uid), settings.dialect_of(held.key.resource)
    asks = asks_of(pod, dialect).containers if pod is not None and dialect is not None else ()
    names = [ask.container for ask in asks]
    return held.key.uid, names.index(held.key.container) if held.key.container in names else len(names)
