"""Decisions about GPUs: dialects, the book of who has what, which pod an Allocate is for. Pure: no I/O, no clock.

Facts and settings in, data out: what a container gets, or a refusal with the sentence for the pod's event.
"""

from colocate.gpus.announcement import ANNOUNCED, announced, announcement_of
from colocate.gpus.book import ContainerBooking, GpuBook, GpuOversold, GpuRoom, PodBooking
from colocate.gpus.dialects import (
    DIALECTS,
    DOSLAB,
    GPUSHARE,
    VOLCANO,
    AnnotationKeys,
    Dialect,
    EnvFact,
    GpuName,
    dialect,
)
from colocate.gpus.health import (
    FIT,
    IGNORED_XIDS,
    GpuHealth,
    HealthSettings,
    after_look,
    after_xid,
    recovers_in,
)
from colocate.gpus.marks import unhealthy_slices
from colocate.gpus.pods import GpuAsk, GpuAsks, GpuContainer, GpuPod, asks_of
from colocate.gpus.settings import Gem, GpuInjection, GpuSettings, HamiCore, Unassumed
from colocate.gpus.slices import Slices, message_bytes, short_keys, slice_order, slices_of, smallest_unit

__all__ = [
    "ANNOUNCED",
    "DIALECTS",
    "DOSLAB",
    "FIT",
    "GPUSHARE",
    "IGNORED_XIDS",
    "VOLCANO",
    "AnnotationKeys",
    "ContainerBooking",
    "Dialect",
    "EnvFact",
    "Gem",
    "GpuAsk",
    "GpuAsks",
    "GpuBook",
    "GpuContainer",
    "GpuHealth",
    "GpuInjection",
    "GpuName",
    "GpuOversold",
    "GpuPod",
    "GpuRoom",
    "GpuSettings",
    "HamiCore",
    "HealthSettings",
    "PodBooking",
    "Slices",
    "Unassumed",
    "after_look",
    "after_xid",
    "announced",
    "announcement_of",
    "asks_of",
    "dialect",
    "message_bytes",
    "recovers_in",
    "short_keys",
    "slice_order",
    "slices_of",
    "smallest_unit",
    "unhealthy_slices",
]
