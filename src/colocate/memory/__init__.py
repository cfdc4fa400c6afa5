"""Decisions about memory: how many blocks a node can sell, and how it gets them back. Pure: no I/O, no clock.

`decide` is the whole of it: a state, facts, settings and the time in; the next state and a plan out, with reasons.
Store the state, carry the plan out, and report what became of it with the next facts. `explain` says why,
`bar` where the memory is. Nothing is measured here, and nothing is done to a pod.

This is the way in: other rooms import from here.
"""

from colocate.memory.actions import (
    Action,
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
    ref,
)
from colocate.memory.blocks import BlockPlan, for_settings, place
from colocate.memory.decision import Decision, decide
from colocate.memory.explanation import Bar, bar, explain
from colocate.memory.facts import Facts, Outcome, Result
from colocate.memory.forecast import Forecast, Instant, Koordinator, Policy, WindowMax
from colocate.memory.ladder import RungHere, rungs_here, way_back, why_no_demotion
from colocate.memory.limits import limits_of
from colocate.memory.settings import MemorySettings, PageCache, Rung, check_settings, height
from colocate.memory.state import State, from_json, to_json
from colocate.memory.usage import far_ids

__all__ = [
    "Action",
    "Bar",
    "BlockPlan",
    "Decision",
    "Demote",
    "Ease",
    "Evict",
    "Facts",
    "Forecast",
    "Instant",
    "Koordinator",
    "MemorySettings",
    "MovePages",
    "Outcome",
    "PageCache",
    "PodAction",
    "PodRef",
    "Policy",
    "Reclaim",
    "Recreate",
    "RestoreLimit",
    "Result",
    "ReturnPages",
    "Rung",
    "RungHere",
    "SetLimit",
    "State",
    "SwitchDemotion",
    "Throttle",
    "Unthrottle",
    "WindowMax",
    "bar",
    "check_settings",
    "decide",
    "explain",
    "far_ids",
    "for_settings",
    "from_json",
    "height",
    "limits_of",
    "place",
    "ref",
    "rungs_here",
    "to_json",
    "way_back",
    "why_no_demotion",
]
