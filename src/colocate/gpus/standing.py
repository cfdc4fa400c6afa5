"""What each pod of a node has of its GPUs or will have: the agent's word, for the node's announcement.

What was answered counts, whether it is proven or not. What is condemned does not, unless it was spared: that may
still start. A pod that waits has what a scheduler of ours has booked for it, or what a swap has given it. The sums
never say less than is or will be held.
"""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from colocate.gpus.announcement import AnnouncedPod
from colocate.gpus.answers import (
    AnswerState,
    GpuAnswers,
    asked_booking,
    claimed_booking,
)
from colocate.gpus.book import GpuBook, PodBooking
from colocate.gpus.claims import DueGpus, GpuClaim, claims_of
from colocate.gpus.pods import GpuPod
from colocate.gpus.settings import GpuSettings
from colocate.model.gpu import GpuInventory


def holders(
    pods: Mapping[str, GpuPod],
    answers: GpuAnswers,
    inventory: GpuInventory,
    settings: GpuSettings,
    absent: Collection[str] = (),
) -> Mapping[str, AnnouncedPod]:
    """By uid, the pods whose GPUs the agent knows; `pods`: by uid, all that are bound to this node.

    An `absent` pod that has nothing is left out, unless a scheduler of ours has booked it: the kubelet may be slow.
    """
    spared = [each for each in answers if each.spared]
    answers = _with_spared(answers)
    book = answers.book(inventory)
    bookings: dict[str, PodBooking] = dict(book.pods)
    waiting: set[str] = set()
    condemned = {each.key.uid for each in answers if each.state is AnswerState.CONDEMNED}
    for dialect in settings.dialects:
        for claim in claims_of(pods.values(), dialect, inventory, settings, answers.due).values():
            has = claim.uid in book.pods
            awaited = has or (claim.due is not None and claim.due.sealed)
            if claim.problem or claim.uid in condemned or (claim.uid in absent and not awaited):
                continue
            if has or claim.due is not None:
                # In the second dialect of a pod, on top of the first.
                known = book if claim.uid not in bookings else book.record(bookings[claim.uid])
                bookings[claim.uid] = _whole(claim, answers, known)
                if not _is_settled(claim, answers):
                    waiting.add(claim.uid)
    waiting -= {each.key.uid for each in spared}
    numbers = _by_pod(answers.due.items())
    found = {
        uid: AnnouncedPod(
            rooms=booking.needs(),
            number=max((due.number for due in numbers.get(uid, {}).values()), default=0),
            settled=uid not in waiting,
            due={resource: due.gpus for resource, due in numbers.get(uid, {}).items()},
        )
        for uid, booking in bookings.items()
    }
    for uid in condemned - found.keys():
        found[uid] = AnnouncedPod(settled=True)
    return found


def _with_spared(answers: GpuAnswers) -> GpuAnswers:
    """With what condemned ones hold that may still start; where that cannot be read, with what they are due. What
    runs with a GPU that the kubelet has forgotten has that one."""
    spared = [each for each in answers if each.spared and each.key not in answers.lost]
    return answers.without(each.key for each in spared if not each.gpus).having(
        *(msgspec.structs.replace(each, state=AnswerState.GIVEN) for each in spared if each.gpus)
    )


def recalled(pods: Mapping[str, AnnouncedPod]) -> Mapping[tuple[str, str], DueGpus]:
    """What pods are due, by what an earlier life of the agent has announced."""
    return {
        (uid, resource): DueGpus(gpus=gpus, number=pod.number)
        for uid, pod in pods.items()
        for resource, gpus in pod.due.items()
    }


def _by_pod(
    dues: Iterable[tuple[tuple[str, str], DueGpus]],
) -> Mapping[str, Mapping[str, DueGpus]]:
    by_pod: dict[str, dict[str, DueGpus]] = {}
    for (uid, resource), due in dues:
        by_pod.setdefault(uid, {})[resource] = due
    return by_pod


def _is_settled(claim: GpuClaim, answers: GpuAnswers) -> bool:
    """Whether the pod is swapped with no other: see `proof.are_alike`."""
    resource = claim.dialect.memory
    proven = any(
        each.state is AnswerState.PROVEN and each.key.resource == resource
        for each in answers.of_pod(claim.uid)
    )
    return proven or any(key.uid == claim.uid for key in answers.lost)


def _whole(claim: GpuClaim, answers: GpuAnswers, book: GpuBook) -> PodBooking:
    """With the containers for which no GPU is chosen yet, on those that the pod has, or where most is free."""
    booking = claimed_booking(claim, answers, book)
    mine = {uuid for each in booking.containers for uuid in each.gpus}
    for ask in claim.asks.containers:
        if answers.get(claim, ask) is not None or claim.gpus(ask.container):
            continue
        free = sorted(
            book.inventory.shared, key=lambda gpu: (gpu.uuid not in mine, -book.free(gpu.uuid).memory)
        )
        gpus = tuple(gpu.uuid for gpu in free[: ask.count])
        booking = msgspec.structs.replace(booking, containers=(*booking.containers, asked_booking(ask, gpus)))
    return booking
