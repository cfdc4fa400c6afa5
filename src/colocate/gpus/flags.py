"""What the annotations of a pod should say, by what it really has: the GPU, and that it is assigned."""

from collections.abc import Mapping

from colocate.gpus.answers import AnswerState, GpuAnswers
from colocate.gpus.claims import GpuClaim
from colocate.gpus.wishes import SEAL, annotations_for, seal
from colocate.model.gpu import GpuInventory


def flags_for(
    claim: GpuClaim, answers: GpuAnswers, inventory: GpuInventory, now: int, key: bytes | None = None
) -> Mapping[str, str]:
    """The annotations that a pod lacks or has wrong; `now` in nanoseconds since the epoch. Nothing: all is right.

    A pod that was swapped gets the GPUs of the other; one for which the agent chose, those that it chose.
    """
    asks = claim.asks.containers
    mine = [answers.get(claim, ask) for ask in asks]
    if any(each is not None and each.state is AnswerState.CONDEMNED for each in mine):
        return {}
    assigned = any(each is not None and each.state is AnswerState.PROVEN for each in mine)
    swapped = claim.uid in answers.due
    if not assigned and not swapped:
        return {}
    gpus = [
        each.gpus if each is not None else claim.gpus(ask.container)
        for each, ask in zip(mine, asks, strict=True)
    ]
    if not all(gpus):
        gpus = []  # Not all of its containers have been asked for yet.
    time = claim.wish.assume_time
    wanted: dict[str, str] = {}
    if assigned:
        wanted[claim.wish.keys.assigned] = "true"
    if gpus and (swapped or not claim.wish.is_booked or time is None):
        written = annotations_for(
            claim.dialect, claim.wish.keys, asks, gpus, inventory, assume_time=time or now, assigned=assigned
        )
        wanted |= written
        if swapped and claim.wish.sealed and key is not None:
            wanted[SEAL] = seal(claim.uid, asks, gpus, time or now, key)
    return {name: value for name, value in wanted.items() if claim.pod.annotations.get(name) != value}
