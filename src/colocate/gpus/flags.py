"""What the annotations of a pod should say, by what it really has: the GPU, and that it is assigned."""

from collections.abc import Mapping, Sequence

from colocate.gpus.answers import AnswerState, GpuAnswers
from colocate.gpus.claims import GpuClaim
from colocate.gpus.read_keys import SEAL
from colocate.gpus.wishes import annotations_for, seal
from colocate.model.gpu import GpuInventory


def flags_for(
    claim: GpuClaim, answers: GpuAnswers, inventory: GpuInventory, now: int, keys: Sequence[bytes] = ()
) -> Mapping[str, str]:
    """The annotations that a pod lacks or has wrong; `now` in nanoseconds since the epoch. Nothing: all is right.

    A pod that was swapped gets the GPUs of the other, with a newer seal; one that its owner has changed since it was
    booked, what was booked; one for which the agent chose, what it chose.
    """
    asks = claim.asks.containers
    mine = [answers.get(claim, ask) for ask in asks]
    if any(each is not None and each.state is AnswerState.CONDEMNED for each in mine):
        return {}
    assigned = any(each is not None and each.state is AnswerState.PROVEN for each in mine)
    if not assigned and claim.due is None:
        return {}
    gpus = [each.gpus if each is not None else due for each, due in zip(mine, claim.all_gpus, strict=True)]
    if not all(gpus):
        gpus = []  # Not all of its containers have been asked for yet.
    time = claim.wish.assume_time
    wanted: dict[str, str] = {}
    if assigned:
        wanted[claim.wish.keys.assigned] = "true"
    if gpus and (claim.due is not None or not claim.wish.is_booked or time is None):
        written = annotations_for(
            claim.dialect, claim.wish.keys, asks, gpus, inventory, assume_time=time or now, assigned=assigned
        )
        wanted |= written
        if claim.due is not None and claim.wish.sealed and keys:
            wanted[SEAL] = seal(claim.uid, claim.dialect, asks, gpus, time or now, keys[0])
    return {name: value for name, value in wanted.items() if claim.pod.annotations.get(name) != value}
