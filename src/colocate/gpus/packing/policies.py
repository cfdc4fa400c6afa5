"""How good it would be to put a pod on a GPU: policies, each a number for every possible place. Least is best.

- `best-fit`: as little as possible is left of the node: the sum of its free CPU, memory and GPUs, each measured by
  the largest node. Of its GPUs, the one with the least free.
- `spread`: the opposite.
- `fgd`: fragmentation gradient descent (Weng et al., USENIX ATC 2023). A free part of a GPU is a fragment for a kind
  of pod that cannot use it now; the place is best where the fragments expected over all kinds grow least.
- `ours`: the same descent on what stays unused *in the end*. For each kind, the node is thought to be filled with
  pods of this kind until its CPU, its memory or its GPUs are used up; what is then left of its GPUs is stranded.
  A node with eight idle GPUs and CPUs for two pods has no fragment in the eyes of `fgd`, which asks whether one pod
  fits; here, most of it is stranded already, and the next CPU-heavy pod goes where CPUs are plenty. To that are
  added the fragments of `fgd` for kinds that ask for a part of a GPU: they keep the parts in one piece.

Ties are broken by best fit.
"""

from enum import StrEnum

import msgspec
import numpy as np

from colocate.gpus.packing.fleet import Flags, Fleet, Floats, Ints, PackRequest, Rooms
from colocate.gpus.packing.mix import Mix
from colocate.model.gpu import CORES

_TIE = 1e-7
"""The part of a GPU that one unit of best fit counts as: far less than any pod asks for."""
_NEARLY = 1e-9
"""Epsilon against float rounding."""


class PackingPolicy(StrEnum):
    BEST_FIT = "best-fit"
    SPREAD = "spread"
    FGD = "fgd"
    OURS = "ours"

    @property
    def looks_ahead(self) -> bool:
        """Whether it depends on what pods are expected."""
        return self in (PackingPolicy.FGD, PackingPolicy.OURS)


class Expected(msgspec.Struct, frozen=True, gc=False, eq=False):
    """The pods that are expected, as far as they depend on which GPUs there are."""

    mix: Mix = Mix()
    suits: Flags | None = None
    """By model and kind, whether a GPU will do; None where no kind minds."""
    parts: Mix = Mix()
    """Those that ask for a part of one GPU."""
    parts_suit: Flags | None = None

    @staticmethod
    def on(fleet: Fleet, mix: Mix) -> "Expected":
        parts = mix.only((mix.gpus == 1) & (mix.gpu_memory < fleet.largest_gpu) & (mix.gpu_cores < CORES))
        return Expected(mix, _suits(fleet, mix), parts, _suits(fleet, parts))


def _suits(fleet: Fleet, mix: Mix) -> Flags | None:
    return mix.suits(fleet) if mix.has_models else None


class Places(msgspec.Struct, frozen=True, gc=False):
    """Where a pod could go: some rows have several places, one for each GPU that differs from the others."""

    row: Ints
    """The place's row, as a place in the list of rows that was asked about."""
    gpus: Flags
    """By place and GPU: which it would take."""
    after: Rooms


def fitting(fleet: Fleet, rows: Ints, request: PackRequest) -> tuple[Ints, Flags]:
    """Of these rows those on which the pod fits; and by row and GPU, which would do."""
    memory, cores = fleet.gpu_memory[rows], fleet.gpu_cores[rows]
    usable = (memory >= request.gpu_memory) & (cores >= request.gpu_cores) & (fleet.size[rows] > 0)
    if request.models:
        usable &= fleet.suits(request.models)[fleet.model[rows]]
    fits = (fleet.cpu[rows] >= request.cpu) & (fleet.memory[rows] >= request.memory)
    if request.gpus > 0:
        fits &= usable.sum(axis=1) >= request.gpus
    return rows[fits], usable[fits]


def places(policy: PackingPolicy, fleet: Fleet, rows: Ints, usable: Flags, request: PackRequest) -> Places:
    """The places on these rows that a policy compares.

    A policy that looks ahead tries every single GPU that differs. Otherwise, and for several GPUs at once, a row has
    one place: the fullest GPUs that will do, or to spread, the emptiest; of one model, where there are enough of one.
    """
    rooms = fleet.rooms(rows)
    if request.gpus == 1 and policy.looks_ahead:
        found = np.argwhere(usable & ~_repeated(fleet, rows, rooms))
        numbers, column = found[:, 0], found[:, 1]
        gpus = np.zeros((len(numbers), usable.shape[1]), np.bool_)
        gpus[np.arange(len(numbers)), column] = True
    else:
        numbers = np.arange(len(rows))
        emptiest = policy is PackingPolicy.SPREAD
        gpus = _alike(rooms, usable, request.gpus, emptiest=emptiest)
    return Places(numbers, gpus, _after(rooms, numbers, gpus, request))


def _repeated(fleet: Fleet, rows: Ints, rooms: Rooms) -> Flags:
    """By row and GPU: whether one before it is just alike."""
    traits = [rooms.gpu_memory, rooms.gpu_cores, rooms.models]
    if rooms.per_size.shape[0] > 1:
        traits.append(fleet.size[rows])
    repeated: Flags = np.zeros(rooms.gpu_memory.shape, np.bool_)
    for column in range(1, repeated.shape[1]):
        alike = np.ones((len(rows), column), np.bool_)
        for trait in traits:
            alike &= trait[:, :column] == trait[:, column : column + 1]
        repeated[:, column] = alike.any(axis=1)
    return repeated


def _alike(rooms: Rooms, usable: Flags, count: int, *, emptiest: bool) -> Flags:
    """The GPUs of one model where a row has enough of one, which may be any model; else models mix."""
    shares, models = rooms.shares(), rooms.models
    chosen = _several(shares, usable, count, emptiest=emptiest)
    if count < 2 or not usable.any():
        return chosen
    least = np.where(usable, models, np.iinfo(np.int64).max).min(axis=1)
    mixed = (np.where(usable, models, -1).max(axis=1) > least) & usable.any(axis=1)
    if not mixed.any():
        return chosen
    best = np.full(len(chosen), np.inf)
    for model in np.unique(models[usable & mixed[:, None]]):
        mine = usable & (models == model)
        option = _several(shares, mine, count, emptiest=emptiest)
        taken = (shares * option).sum(axis=1) * (-1 if emptiest else 1)
        better = mixed & (mine.sum(axis=1) >= count) & (taken < best)
        chosen[better], best[better] = option[better], taken[better]
    return chosen


def _several(shares: Floats, usable: Flags, count: int, *, emptiest: bool) -> Flags:
    chosen = np.zeros(usable.shape, np.bool_)
    if count:
        order = np.argsort(np.where(usable, -shares if emptiest else shares, np.inf), axis=1, kind="stable")
        np.put_along_axis(chosen, order[:, :count], True, axis=1)
    return chosen


def _after(rooms: Rooms, numbers: Ints, gpus: Flags, request: PackRequest) -> Rooms:
    alike = rooms.per_size.shape[0] == 1
    return Rooms(
        rooms.cpu[numbers] - request.cpu,
        rooms.memory[numbers] - request.memory,
        rooms.gpu_memory[numbers] - request.gpu_memory * gpus,
        rooms.gpu_cores[numbers] - request.gpu_cores * gpus,
        rooms.per_size if alike else rooms.per_size[numbers],
        rooms.models[numbers],
    )


def left(fleet: Fleet, rooms: Rooms) -> Floats:
    """The sum of what is left, each measured by the largest node."""
    cpu, memory, gpus = fleet.most
    spare = rooms.cpu / cpu + rooms.memory / memory + rooms.shares().sum(axis=1) / gpus
    # Sums that are equal must be equal: the first node wins then, on every machine.
    rounded: Floats = np.round(spare, 9)
    return rounded


def potential(policy: PackingPolicy, expected: Expected, rooms: Rooms) -> Floats:
    """What of the free GPUs of each row is as good as lost, in GPUs."""
    shares = rooms.shares()
    free: Floats = shares.sum(axis=1)
    if not expected.mix.kinds or not len(rooms):
        return free
    if policy is PackingPolicy.FGD:
        return free - _usable_now(expected.mix, expected.suits, rooms, shares) @ expected.mix.weights
    lost: Floats = (
        free - _usable_in_the_end(expected.mix, expected.suits, rooms, shares) @ expected.mix.weights
    )
    parts = expected.parts
    if parts.kinds:
        usable = _usable_now(parts, expected.parts_suit, rooms, shares)
        lost += (free[:, None] - usable) @ parts.weights
    return lost


def _usable_now(mix: Mix, suits: Flags | None, rooms: Rooms, shares: Floats) -> Floats:
    """By row and kind: the free part of the GPUs that one pod of the kind could use, if it fits."""
    fits = (rooms.cpu[:, None] >= mix.cpu) & (rooms.memory[:, None] >= mix.memory)
    able = rooms.gpu_memory[:, :, None] >= mix.gpu_memory
    if mix.has_cores:
        able &= rooms.gpu_cores[:, :, None] >= mix.gpu_cores
    able &= (shares > 0)[:, :, None]
    if suits is not None:
        able &= suits[rooms.models]
    fits &= able.sum(axis=1) >= mix.gpus
    usable: Floats = np.einsum("rg,rgk->rk", shares, able) * fits
    return usable


def _usable_in_the_end(mix: Mix, suits: Flags | None, rooms: Rooms, shares: Floats) -> Floats:
    """By row and kind: what pods of the kind alone would use of the GPUs, with as many of them as fit.

    Pods are counted in fractions, so that every CPU counts and not just each that completes a pod; but where not
    even one fits, nothing is usable.
    """
    part = np.maximum(mix.gpu_memory * rooms.per_size[:, :, None], _NEARLY)
    pieces = (rooms.gpu_memory * rooms.per_size)[:, :, None] / part
    if mix.has_cores:
        cores = np.maximum(mix.cores_part, _NEARLY)
        pieces = np.minimum(pieces, (rooms.gpu_cores / CORES)[:, :, None] / cores)
        part = np.maximum(part, mix.cores_part)
    pieces = np.floor(pieces + _NEARLY)
    if suits is not None:
        pieces = pieces * suits[rooms.models]
    total = pieces.sum(axis=1)
    pods = total / mix.gpus
    most = np.minimum(_how_many(rooms.cpu, mix.cpu), _how_many(rooms.memory, mix.memory))
    room = np.minimum(pods, most)
    # What a piece is of its GPU: the same number for all where GPUs are alike.
    used = total * part[0, 0] if part.shape[:2] == (1, 1) else (pieces * part).sum(axis=1)
    usable: Floats = np.where(room >= 1, used * (room / np.maximum(pods, _NEARLY)), 0.0)
    return usable


def _how_many(free: Ints, asked: Floats) -> Floats:
    """By row and kind: how many pods a resource would last for."""
    many: Floats = np.where(asked > 0, free[:, None] / np.maximum(asked, 1.0), np.inf)
    return many


def tie(fleet: Fleet, rooms: Rooms) -> Floats:
    return _TIE * left(fleet, rooms)
