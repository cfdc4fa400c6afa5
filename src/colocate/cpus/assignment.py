"""What is asked for a container, what it was given, and the state of all of them as data that can be stored.

Values alone: who gets what is decided by `allocator`.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec

from colocate.cpus.wishes import CpuWishes
from colocate.errors import UserError
from colocate.model.cpuset import EMPTY, CpuSet
from colocate.model.memory import Bytes, PodUid
from colocate.model.pod import QosClass

STATE_VERSION = 1

ContainerKey: TypeAlias = tuple[PodUid, str]
"""A container by its pod and its name: it stays the same when it restarts."""
MilliCpu: TypeAlias = int
"""Thousandths of a CPU."""


class ContainerRole(StrEnum):
    """When a container runs."""

    INIT = "init"
    """Before the others: what it has goes on to them."""
    SIDECAR = "sidecar"
    """An init container that goes on beside the others."""
    APP = "app"


class CpuRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a container asks for."""

    pod: PodUid
    container: str
    namespace: str = "default"
    cpu: MilliCpu
    limit: MilliCpu | None = None
    memory: Bytes = 0
    qos: QosClass = QosClass.BURSTABLE
    role: ContainerRole = ContainerRole.APP
    wishes: CpuWishes = CpuWishes()
    beside: tuple[int, ...] = ()
    """NUMA nodes of its devices."""
    warnings: tuple[str, ...] = ()
    """What was left out when its wishes were read."""
    relaxed: bool = False
    """It wished for strict placement, and that was left out: it ran already, and no CCX had room."""

    @property
    def key(self) -> ContainerKey:
        return self.pod, self.container

    @property
    def is_whole(self) -> bool:
        return self.cpu > 0 and self.cpu % 1000 == 0


class CpuMode(StrEnum):
    """In which way a container has its CPUs."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"
    RESERVED = "reserved"
    NAMED = "named pool"
    UNPOOLED = "unpooled"
    """All shared CPUs: the container asks for none, or has opted out."""


class PoolShare(msgspec.Struct, frozen=True):
    """A pool of a shared container, and how much of its request counts there."""

    pool: str
    cpu: MilliCpu
    cpus: CpuSet
    """As the pool was: the same name may mean other CPUs when the machine changes."""


class MemoryShare(msgspec.Struct, frozen=True):
    """A NUMA node of a container's memory, and how much of it counts there."""

    node: int
    memory: Bytes


class CpuAssignment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a container was given, and why."""

    request: CpuRequest
    mode: CpuMode
    cpus: CpuSet = EMPTY
    """The CPUs of an exclusive container; those of others follow from their pools."""
    parts: tuple[PoolShare, ...] = ()
    pool: str = ""
    """The named pool."""
    memory: tuple[MemoryShare, ...] = ()
    """Nothing where its memory is left alone."""
    rung: str = ""
    short: MilliCpu = 0
    """How much less than its request its pool had free."""
    ended: bool = False
    """It has ended, and may start again in its sandbox: what it has is kept."""
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def key(self) -> ContainerKey:
        return self.request.key


class CpuState(msgspec.Struct, frozen=True, kw_only=True):
    """All that an allocator must remember."""

    version: int = STATE_VERSION
    assignments: tuple[CpuAssignment, ...] = ()
    """In the order in which they were made."""
    handed: Mapping[PodUid, CpuSet] = {}
    """By pod, the CPUs that its init containers had, for those that follow."""


class CpuUpdate(msgspec.Struct, frozen=True):
    """A container that ran already, and its new CPUs."""

    key: ContainerKey
    cpus: CpuSet


class CpuChange(msgspec.Struct, frozen=True):
    """What follows from one decision: one container's CPUs, and those of others that change with it."""

    assignment: CpuAssignment | None
    cpus: CpuSet
    mems: tuple[int, ...]
    """NUMA nodes of its memory; nothing where that is left alone."""
    updates: tuple[CpuUpdate, ...] = ()


class CpuMove(msgspec.Struct, frozen=True, kw_only=True):
    """A container that goes to other CPUs, and why."""

    key: ContainerKey
    before: CpuSet
    after: CpuSet
    assignment: CpuAssignment
    why: str


class CpuRefused(UserError):
    """A strict wish that cannot be had: the container must not start."""


def encode_state(state: CpuState) -> bytes:
    """The state as JSON."""
    return msgspec.json.encode(state, enc_hook=_encoded)


def decode_state(data: bytes) -> CpuState:
    """The state from JSON; ValueError where it is none, or of a version that is not known."""
    try:
        state = msgspec.json.decode(data, type=CpuState, dec_hook=_decoded)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"the state of CPUs cannot be read: {error}") from error
    if state.version != STATE_VERSION:
        raise ValueError(
            f"the state of CPUs has version {state.version}; version {STATE_VERSION} is understood"
        )
    return state


def _encoded(value: object) -> str:
    if isinstance(value, CpuSet):
        return str(value)
    raise NotImplementedError(f"{type(value)} is not part of a state")


def _decoded(kind: type, value: Any) -> CpuSet:
    if kind is CpuSet and isinstance(value, str):
        return CpuSet.parse(value)
    raise ValueError("a set of CPUs is written as a list such as 0-3")
