"""The steps of a removal, as data: whoever runs one is told of them, and shows them as it likes."""

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from colocate.cluster.json_patch import Patch
from colocate.devices.extended_resources import SYNC, ExtendedResource

POLL = 2.0
"""Seconds between two looks."""
STAYS_AWAY = SYNC + POLL
"""Seconds for which it is watched: one sync, and a look after it."""


class WaitingStep(msgspec.Struct, frozen=True):
    """The kubelet has not let go yet."""

    resource: ExtendedResource
    waited: float


class Patching(msgspec.Struct, frozen=True):
    """The key is removed now; `early` where the kubelet is expected to put it back."""

    patch: Patch
    early: bool


class Watching(msgspec.Struct, frozen=True):
    """It is gone from capacity; does it stay away?"""

    watched: float
    needed: float = STAYS_AWAY


class PutBack(msgspec.Struct, frozen=True):
    """It is there again."""

    resource: ExtendedResource


class Changed(msgspec.Struct, frozen=True):
    """Somebody else has changed it meanwhile; nothing was done."""


class Trouble(msgspec.Struct, frozen=True):
    """The API server does not answer; it will be asked again."""

    error: str


Step: TypeAlias = WaitingStep | Patching | Watching | PutBack | Changed | Trouble
Report: TypeAlias = Callable[[Step], None]
