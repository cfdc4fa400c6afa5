"""Decisions about GPUs: dialects, the book of who has what, which pod an Allocate is for. Pure: no I/O, no clock.

Facts and settings in, data out: what a container gets, or a refusal with the sentence for the pod's event.
"""

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
from colocate.gpus.pods import GpuAsk, GpuAsks, GpuContainer, GpuPod, asks_of

__all__ = [
    "DIALECTS",
    "DOSLAB",
    "GPUSHARE",
    "VOLCANO",
    "AnnotationKeys",
    "ContainerBooking",
    "Dialect",
    "EnvFact",
    "GpuAsk",
    "GpuAsks",
    "GpuBook",
    "GpuContainer",
    "GpuName",
    "GpuOversold",
    "GpuPod",
    "GpuRoom",
    "PodBooking",
    "asks_of",
    "dialect",
]
