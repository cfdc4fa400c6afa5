"""Decisions about memory: how many blocks a node can sell, and how it gets them back. Pure: no I/O, no clock.

`decide` takes a state, facts, settings and the time, and returns the next state and a plan, with reasons. Its caller
stores the state, carries out the plan, and reports the outcomes with the next facts. `explain` says why, `memory_bar`
where the memory is. Nothing is measured here, and nothing is done to a pod.

Other packages import from here only.
"""

from colocate.memory.actions import (
    Action,
    ActionOutcome,
    ActionResult,
    Demote,
    Ease,
    Evict,
    MovePages,
    PodAction,
    PodRef,
    Reclaim,
    Recreate,
    RestoreLimit,
    ReturnPages,
    SetLimit,
    SwitchDemotion,
    Throttle,
    Unthrottle,
    pod_ref,
)
from colocate.memory.blocks import BlockPlan, block_place, blocks_for_settings
from colocate.memory.decision import MemoryDecision, decide
from colocate.memory.explanation import MemoryBar, explain, memory_bar, returning
from colocate.memory.facts import MemoryFacts
from colocate.memory.forecast import Forecast, Instant, Koordinator, KoordinatorPolicy, WindowMax
from colocate.memory.ladder import RungHere, rungs_here, way_back, why_no_demotion
from colocate.memory.limits import limits_of
from colocate.memory.settings import MemoryOffer, MemorySettings, PageCache, Rung, check_settings, height
from colocate.memory.state import MemoryState, state_from_json, state_to_json
from colocate.memory.usage import far_ids

__all__ = [
    "Action",
    "ActionOutcome",
    "ActionResult",
    "BlockPlan",
    "Demote",
    "Ease",
    "Evict",
    "Forecast",
    "Instant",
    "Koordinator",
    "KoordinatorPolicy",
    "MemoryBar",
    "MemoryDecision",
    "MemoryFacts",
    "MemoryOffer",
    "MemorySettings",
    "MemoryState",
    "MovePages",
    "PageCache",
    "PodAction",
    "PodRef",
    "Reclaim",
    "Recreate",
    "RestoreLimit",
    "ReturnPages",
    "Rung",
    "RungHere",
    "SetLimit",
    "SwitchDemotion",
    "Throttle",
    "Unthrottle",
    "WindowMax",
    "block_place",
    "blocks_for_settings",
    "check_settings",
    "decide",
    "explain",
    "far_ids",
    "height",
    "limits_of",
    "memory_bar",
    "pod_ref",
    "returning",
    "rungs_here",
    "state_from_json",
    "state_to_json",
    "way_back",
    "why_no_demotion",
]
