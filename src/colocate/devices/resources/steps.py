"""The steps of a removal, as data that it reports to its caller."""

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from colocate.cluster.json_patch import Patch
from colocate.devices.extended_resources import SYNC, ExtendedResource

POLL = 2.0
"""Seconds between two looks."""
STAYS_AWAY = SYNC + POLL
"""Seconds to watch after the removal: one sync and a look."""


class WaitingStep(msgspec.Struct, frozen=True):
    """The kubelet has not forgotten the resource yet."""

    resource: ExtendedResource
    waited: float


class Patching(msgspec.Struct, frozen=True):
    """The key is removed now; `early` if the kubelet will probably put it back."""

    patch: Patch
    early: bool


class Watching(msgspec.Struct, frozen=True):
    """The key is gone from capacity; watching whether it stays away."""

    watched: float
    needed: float = STAYS_AWAY


class PutBack(msgspec.Struct, frozen=True):
    """The kubelet put the resource back."""

    resource: ExtendedResource


class Changed(msgspec.Struct, frozen=True):
    """Another writer changed it meanwhile; nothing was done."""


class Trouble(msgspec.Struct, frozen=True):
    """The API server does not answer; the next attempt follows."""

    error: str


Step: TypeAlias = WaitingStep | Patching | Watching | PutBack | Changed | Trouble
Report: TypeAlias = Callable[[Step], None]
