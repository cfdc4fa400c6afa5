"""Decisions about GPUs: dialects, the book of who has what, which pod an Allocate is for. Pure: no I/O, no clock.

Facts and settings in, data out: what a container gets, or a refusal with the sentence for the pod's event.
"""

from colocate.gpus.announcement import (
    ANNOUNCED,
    MOST_ABSENT,
    AnnouncedPod,
    GpuAnnouncement,
    announced,
    announcement_of,
    short_name,
)
from colocate.gpus.answers import AnswerKey, AnswerState, GpuAnswer, GpuAnswers
from colocate.gpus.book import ContainerBooking, GpuBook, GpuOversold, GpuRoom, PodBooking
from colocate.gpus.claims import DueGpus, Dues, GpuClaim, claim_of, claims_of
from colocate.gpus.dialects import (
    COLOCATE,
    COUNT_WISH,
    DIALECTS,
    DOSLAB,
    GPUSHARE,
    VOLCANO,
    WRITTEN_BESIDE,
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
from colocate.gpus.injection import injected_gpus, injection, overridden
from colocate.gpus.kubelet_cost import bearable_unit, device_cost, devices_of, gpu_offer
from colocate.gpus.marks import unhealthy_slices
from colocate.gpus.matching import GpuMatch, GpuRefusal, match, waiting_pods
from colocate.gpus.pods import GpuAsk, GpuAsks, GpuContainer, GpuPod, asks_of, counted_in_limits
from colocate.gpus.proof import GpuHolding
from colocate.gpus.read_keys import LONGEST, SEAL, VISIBLE, GpuQuantities
from colocate.gpus.settings import Gem, GpuInjection, GpuSettings, HamiCore, Unassumed
from colocate.gpus.settlement import GRACE, GpuRecords, settle
from colocate.gpus.slices import Slices, message_bytes, short_keys, slice_order, slices_of, smallest_unit
from colocate.gpus.standing import holders, recalled
from colocate.gpus.wishes import GpuWish, annotations_for, booked_wish, gpus_for, seal, wish_of

__all__ = [
    "ANNOUNCED",
    "COLOCATE",
    "COUNT_WISH",
    "DIALECTS",
    "DOSLAB",
    "FIT",
    "GPUSHARE",
    "GRACE",
    "IGNORED_XIDS",
    "LONGEST",
    "MOST_ABSENT",
    "SEAL",
    "VISIBLE",
    "VOLCANO",
    "WRITTEN_BESIDE",
    "AnnotationKeys",
    "AnnouncedPod",
    "AnswerKey",
    "AnswerState",
    "ContainerBooking",
    "Dialect",
    "DueGpus",
    "Dues",
    "EnvFact",
    "Gem",
    "GpuAnnouncement",
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
    "GpuQuantities",
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
    "bearable_unit",
    "booked_wish",
    "claim_of",
    "claims_of",
    "counted_in_limits",
    "device_cost",
    "devices_of",
    "dialect",
    "disagreements",
    "explain_pod",
    "flags_for",
    "gpu_offer",
    "gpus_for",
    "holders",
    "injected_gpus",
    "injection",
    "match",
    "message_bytes",
    "other_unit",
    "overridden",
    "overriding",
    "recalled",
    "recovers_in",
    "seal",
    "settle",
    "short_keys",
    "short_name",
    "slice_order",
    "slices_of",
    "smallest_unit",
    "unhealthy_slices",
    "waiting_pods",
    "wish_of",
]
