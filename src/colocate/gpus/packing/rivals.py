"""Pods that a kubelet could take for each other: it asks its agent for so many devices, and tells no name.

Two pods on their way to one node that ask for as much are told apart only afterwards. Alike ones on alike GPUs are
swapped then; others could not start. On the same GPU it does not matter who is who. So a pod gets the GPU of the one
that it could be taken for, if it fits there; and where the two could not be swapped, it waits until the agent has
told of the other. No I/O.
"""

from collections.abc import Iterable, Mapping, Sequence

from colocate.gpus.packing import PackRequest, suits
from colocate.gpus.packing.node_book import HeldPod, NodeBook, Shape

PATIENCE = 15.0
"""Seconds for which an agent's word on a pod is waited for, and for which a pod waits for all of its rivals."""


def rivals_of(shape: Shape, known: NodeBook, now: float) -> Mapping[str, HeldPod]:
    """Booked pods of a node that the kubelet may take for one of this shape.

    An agent that does not say which pod has what settles none; an agent that has not spoken for long is not waited
    for. A pod without a booking comes after the booked ones: it is taken for none of them.
    """
    if known.told.pods is None:
        return {}
    devices = {part[:2] for part in shape}
    return {
        uid: held
        for uid, held in known.held.items()
        if held.booking is not None
        and now - held.since < PATIENCE
        and devices & {part[:2] for part in held.shape}
        and not known.is_settled(uid)
    }


def gpus_of(rivals: Mapping[str, HeldPod], way: PackRequest, known: NodeBook) -> list[list[str]]:
    """The GPUs of these pods that would do, those of the most pods first."""
    counts: dict[frozenset[str], int] = {}
    for uid in rivals:
        gpus = known.gpus(uid)
        counts[gpus] = counts.get(gpus, 0) + 1
    found = [
        [gpu for gpu in known.told.inventory.shared if gpu.uuid in gpus]
        for gpus in sorted(counts, key=lambda gpus: (-counts[gpus], sorted(gpus)))
    ]
    return [
        [gpu.uuid for gpu in gpus]
        for gpus in found
        if len(gpus) == way.gpus and all(suits(gpu.model, way.models) for gpu in gpus)
    ]


def is_confusing(gpus: Sequence[str], shape: Shape, rivals: Mapping[str, HeldPod], known: NodeBook) -> bool:
    """Whether a pod on these GPUs could be taken for one that it cannot be swapped with."""
    for uid, held in rivals.items():
        theirs = known.gpus(uid)
        if theirs != frozenset(gpus) and (
            held.shape != shape or _kinds(theirs, known) != _kinds(gpus, known)
        ):
            return True
    return False


def _kinds(uuids: Iterable[str], known: NodeBook) -> list[tuple[str, int]]:
    found = [known.told.inventory.get(uuid) for uuid in uuids]
    return sorted((gpu.model, gpu.memory) for gpu in found if gpu is not None)
