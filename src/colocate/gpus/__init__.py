"""Decisions about GPUs: dialects, the book of who has what, which pod an Allocate is for. Pure: no I/O, no clock.

Facts and settings in, data out: what a container gets, or a refusal with the sentence for the pod's event.
"""

from colocate.gpus.announcement import ANNOUNCED, announced, announcement_of
from colocate.gpus.answers import AnswerKey, AnswerState, GpuAnswer, GpuAnswers
from colocate.gpus.book import ContainerBooking, GpuBook, GpuOversold, GpuRoom, PodBooking
from colocate.gpus.claims import GpuClaim, claim_of, claims_of
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
from colocate.gpus.disagreement import GpuDisagreement, GpuRecordSource, disagreements, other_unit, overriding
from colocate.gpus.explanation import explain_pod
from colocate.gpus.flags import flags_for
from colocate.gpus.health import (
    FIT,
    IGNORED_XIDS,
    GpuHealth,
    HealthSettings,
    after_look,
    after_xid,
    recovers_in,
)
from colocate.gpus.injection import VISIBLE, injected_gpus, injection
from colocate.gpus.marks import unhealthy_slices
from colocate.gpus.matching import GpuMatch, GpuRefusal, match
from colocate.gpus.pods import GpuAsk, GpuAsks, GpuContainer, GpuPod, asks_of
from colocate.gpus.proof import GpuHolding
from colocate.gpus.settings import Gem, GpuInjection, GpuSettings, HamiCore, Unassumed
from colocate.gpus.settlement import GRACE, GpuRecords, settle
from colocate.gpus.slices import Slices, message_bytes, short_keys, slice_order, slices_of, smallest_unit
from colocate.gpus.wishes import SEAL, GpuWish, annotations_for, gpus_for, seal, wish_of

__all__ = [
    "ANNOUNCED",
    "DIALECTS",
    "DOSLAB",
    "FIT",
    "GPUSHARE",
    "GRACE",
    "IGNORED_XIDS",
    "SEAL",
    "VISIBLE",
    "VOLCANO",
    "AnnotationKeys",
    "AnswerKey",
    "AnswerState",
    "ContainerBooking",
    "Dialect",
    "EnvFact",
    "Gem",
    "GpuAnswer",
    "GpuAnswers",
    "GpuAsk",
    "GpuAsks",
    "GpuBook",
    "GpuClaim",
    "GpuContainer",
    "GpuDisagreement",
    "GpuHealth",
    "GpuHolding",
    "GpuInjection",
    "GpuMatch",
    "GpuName",
    "GpuOversold",
    "GpuPod",
    "GpuRecordSource",
    "GpuRecords",
    "GpuRefusal",
    "GpuRoom",
    "GpuSettings",
    "GpuWish",
    "HamiCore",
    "HealthSettings",
    "PodBooking",
    "Slices",
    "Unassumed",
    "after_look",
    "after_xid",
    "annotations_for",
    "announced",
    "announcement_of",
    "asks_of",
    "claim_of",
    "claims_of",
    "dialect",
    "disagreements",
    "explain_pod",
    "flags_for",
    "gpus_for",
    "injected_gpus",
    "injection",
    "match",
    "message_bytes",
    "other_unit",
    "overriding",
    "recovers_in",
    "seal",
    "settle",
    "short_keys",
    "slice_order",
    "slices_of",
    "smallest_unit",
    "unhealthy_slices",
    "wish_of",
]
