"""Faults of mock devices, and the changes to them: pure data and one function.

The changes are also the messages on the control socket.
"""

from collections.abc import Iterable
from typing import TypeAlias

import msgspec


class _Change(msgspec.Struct, frozen=True, tag_field="do", tag=str.lower):
    """One change by `colocate mock`."""


class Unhealthy(_Change, frozen=True):
    """These devices break: the kubelet gives them to no new pod."""

    ids: tuple[str, ...]


class Healthy(_Change, frozen=True):
    """These devices work again."""

    ids: tuple[str, ...]


class Vanish(_Change, frozen=True):
    """These devices leave the list."""

    ids: tuple[str, ...]


class Return(_Change, frozen=True):
    """These devices are back in the list."""

    ids: tuple[str, ...]


class Slow(_Change, frozen=True):
    """Every Allocate takes this many seconds; 0 ends it."""

    seconds: float


class Fail(_Change, frozen=True):
    """Allocate fails with this message, a number of times or until cleared."""

    message: str
    times: int | None = None


class Hang(_Change, frozen=True):
    """Neither Allocate nor GetPreferredAllocation answers until cleared."""


class Clear(_Change, frozen=True):
    """Everything works again."""


Change: TypeAlias = Unhealthy | Healthy | Vanish | Return | Slow | Fail | Hang | Clear

MENDING = (Healthy, Return, Clear)


class Faults(msgspec.Struct, frozen=True):
    """What is wrong with one resource now."""

    unhealthy: frozenset[str] = frozenset()
    vanished: frozenset[str] = frozenset()
    slow: float = 0.0
    fail: Fail | None = None
    hang: bool = False

    def only(self, ids: Iterable[str]) -> "Faults":
        """The faults without devices that no longer exist."""
        still = frozenset(ids)
        return msgspec.structs.replace(self, unhealthy=self.unhealthy & still, vanished=self.vanished & still)

    def one_failure_less(self) -> "Faults":
        """The faults after an Allocate failed because of `fail`."""
        if self.fail is None or self.fail.times is None:
            return self
        left = self.fail.times - 1
        fail = msgspec.structs.replace(self.fail, times=left) if left > 0 else None
        return msgspec.structs.replace(self, fail=fail)


def after(faults: Faults, change: Change) -> Faults:
    """The faults after a change."""
    match change:
        case Unhealthy(ids=ids):
            return msgspec.structs.replace(faults, unhealthy=faults.unhealthy | set(ids))
        case Healthy(ids=ids):
            return msgspec.structs.replace(faults, unhealthy=faults.unhealthy - set(ids))
        case Vanish(ids=ids):
            return msgspec.structs.replace(faults, vanished=faults.vanished | set(ids))
        case Return(ids=ids):
            return msgspec.structs.replace(faults, vanished=faults.vanished - set(ids))
        case Slow(seconds=seconds):
            return msgspec.structs.replace(faults, slow=seconds)
        case Fail():
            return msgspec.structs.replace(faults, fail=change)
        case Hang():
            return msgspec.structs.replace(faults, hang=True)
        case Clear():
            return Faults()
