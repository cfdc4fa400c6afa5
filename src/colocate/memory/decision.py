"""One turn: a state and facts in, the next state and a plan out.

The caller stores the state, then carries out the plan, then reports the outcomes with the next facts.
"""

from collections.abc import Mapping

import msgspec

from colocate.memory import blocks as block_list
from colocate.memory import ladder as the_ladder
from colocate.memory.actions import Action
from colocate.memory.balance import Balance, strike
from colocate.memory.blocks import BlockPlan, WantedBlocks
from colocate.memory.colocated import Colocated, assert_limits, blocks_in_giving_order, giving_order
from colocate.memory.facts import MemoryFacts
from colocate.memory.forecast import Expectation, Safety, remember, safety_of
from colocate.memory.ladder import RungHere, Situation, rungs_here, throttled_again
from colocate.memory.limits import limits_of, set_aside
from colocate.memory.settings import MemorySettings, PageCache, Rung
from colocate.memory.state import Debt, MemoryState, go_on
from colocate.memory.usage import MemoryUsage, UsageView, far_ids, measure
from colocate.model.memory import KubeletReserves, NodeWord, PodIdentity, PodUid


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to do, in this order, with notes about what is not done."""

    blocks: BlockPlan = BlockPlan()
    """The list of blocks to publish."""
    actions: tuple[Action, ...] = ()
    notes: tuple[str, ...] = ()
    stood_on: tuple[Rung, ...] = ()
    """The rungs of the ladder that this turn tried."""


class MemoryDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A turn with all figures that led to it."""

    state: MemoryState
    plan: MemoryPlan
    usage: MemoryUsage
    safety: Safety
    expected: Expectation
    balance: Balance
    rungs: tuple[RungHere, ...]
    pods: tuple[Colocated, ...]
    wanted: WantedBlocks
    offered: int
    """Blocks that are free and healthy."""
    held: int
    word: NodeWord | None
    """What the API says of the node, or said last; None where it has never answered."""
    word_is_old: bool
    """Whether `word` is from before the agent's start."""
    unstored: str = ""
    """Why the state cannot be stored; empty where it can."""


def decide(state: MemoryState, facts: MemoryFacts, settings: MemorySettings, now: float) -> MemoryDecision:
    """`now` is the machine's monotonic time. UserError where the settings contradict blocks that pods hold."""
    state = go_on(state, facts.boot, now, settings.longest_gap)
    told = state.holders if facts.holders is None else facts.holders
    holders = {uid: tuple(dict.fromkeys(ids)) for uid, ids in told.items() if ids}
    # A pod that runs and no longer holds blocks must still get back what was taken from it.
    holders |= {
        uid: ()
        for uid in (reading.uid for reading in facts.readings)
        if state.ladder.has_done_something_to(uid) and uid not in holders
    }
    promised = tuple(dict.fromkeys(facts.promised))
    identities = _identities(state, facts, holders)
    known = throttled_again(state.ladder, facts.readings, identities)
    state = msgspec.structs.replace(state, ladder=known)
    far = far_ids(facts.node, settings.far_nodes)
    views = [UsageView.KERNEL] if settings.page_cache is PageCache.KERNEL else list(UsageView)
    besides = {uid: set_aside(identities[uid], settings.block_size) for uid in holders}
    usage = measure(facts.node, facts.readings, facts.pods, besides, far, views)
    word = _word(state, facts)
    reserves = KubeletReserves() if word is None else word.reserves
    safety = safety_of(reserves, facts.node.hugepages, usage.near, usage.system, settings.margin)
    history = remember(state.history, usage.online, state.clock, settings.forecast.remembers)
    expected = settings.forecast.expect(usage, safety, history)
    held = {uid: len(ids) for uid, ids in holders.items()}
    unseen = [id for id in promised if not any(id in ids for ids in holders.values())]
    balance = strike(usage, expected, held, len(unseen), settings.block_size)

    pods = giving_order(_colocated(facts, settings, holders, identities, usage), balance.due)
    in_order = [*blocks_in_giving_order(pods), *unseen]
    wanted = _wanted(facts, word, settings, state, balance, len(in_order))
    listed = block_list.blocks_for_settings(state.blocks, settings, frozenset(in_order))
    listed, block_plan = block_list.turn(listed, wanted, in_order, state.clock, settings)
    rungs = rungs_here(facts.controls, far, settings, stores=not facts.unstored)
    climbed = the_ladder.turn(
        state.ladder,
        Situation(
            facts=facts,
            settings=settings,
            now=state.clock,
            pods=tuple(pods),
            rungs=rungs,
            far_ids=far,
            debt=balance.debt,
            due=balance.due,
            slack=balance.slack,
            margin=expected.margin,
        ),
    )
    asserted = assert_limits(pods, climbed.ladder.throttled, facts.controls, facts.off)
    ladder, switched = the_ladder.switch_demotion(climbed.ladder, climbed.actions, facts.controls.demotion)
    plan = MemoryPlan(
        blocks=block_plan,
        actions=(*asserted, *switched, *climbed.actions),
        notes=climbed.notes,
        stood_on=climbed.stood_on,
    )
    next_state = msgspec.structs.replace(
        state,
        blocks=listed,
        holders=holders,
        pods=identities,
        word=word,
        debt=_debt(state, balance),
        ladder=ladder,
        history=history,
    )
    return MemoryDecision(
        state=next_state,
        plan=plan,
        usage=usage,
        safety=safety,
        expected=expected,
        balance=balance,
        rungs=rungs,
        pods=tuple(pods),
        wanted=wanted,
        offered=len(listed.healthy().difference(in_order)),
        held=len(in_order),
        word=word,
        word_is_old=facts.word is None,
        unstored=facts.unstored,
    )


def _word(state: MemoryState, facts: MemoryFacts) -> NodeWord | None:
    """What the API says of the node; where it has no such node, with the last known reserves of the kubelet."""
    if facts.word is None or not facts.word.absent or state.word is None:
        return state.word if facts.word is None else facts.word
    return msgspec.structs.replace(facts.word, reserves=state.word.reserves)


def _identities(
    state: MemoryState, facts: MemoryFacts, holders: Mapping[PodUid, tuple[str, ...]]
) -> dict[PodUid, PodIdentity]:
    told = {pod.uid: pod for pod in facts.pods}
    return {uid: state.who(uid, told.get(uid)) for uid in holders}


def _colocated(
    facts: MemoryFacts,
    settings: MemorySettings,
    holders: Mapping[PodUid, tuple[str, ...]],
    identities: Mapping[PodUid, PodIdentity],
    usage: MemoryUsage,
) -> list[Colocated]:
    readings = {reading.uid: reading for reading in facts.readings}
    return [
        Colocated(
            pod=identities[uid],
            ids=ids,
            reading=readings.get(uid),
            limits=limits_of(identities[uid], settings.block_size, settings.swap),
            far=usage.far.get(uid, 0),
            used=usage.colocated.get(uid, 0),
            presumed=len(ids) * settings.block_size if identities[uid].started and uid not in readings else 0,
            besides=usage.besides.get(uid, 0),
            # Treat a pod without a name as allowed.
            entitled=not identities[uid].name or settings.sells_to(identities[uid].namespace),
        )
        for uid, ids in holders.items()
    ]


def _wanted(
    facts: MemoryFacts,
    word: NodeWord | None,
    settings: MemorySettings,
    state: MemoryState,
    balance: Balance,
    held: int,
) -> WantedBlocks:
    """How many blocks the node should have; none where something forbids it."""
    if facts.off:
        return WantedBlocks(0, held, False, "Memory colocation is switched off on this node.")
    if facts.unstored:
        reason = f"The agent cannot store its state ({facts.unstored}), so it offers no block until it can."
        return WantedBlocks(0, balance.blocks_in_debt, False, reason)
    if word is None:
        reason = (
            "The agent does not know yet whether the node is cordoned, being drained or under MemoryPressure, so it "
            "offers no block until the API server answers."
        )
        return WantedBlocks(0, balance.blocks_in_debt, False, reason)
    closed = [
        why
        for said, why in (
            (word.absent, f"unknown to the API server under the name {facts.node_name}"),
            (word.cordoned, "cordoned"),
            (word.draining, "being drained"),
            (word.memory_pressure, "under MemoryPressure according to the kubelet"),
        )
        if said
    ]
    if closed:
        reason = f"The node is {' and '.join(closed)}, so it offers no block."
        return WantedBlocks(0, balance.blocks_in_debt, False, reason)
    free = min(balance.free, max(0, settings.most_blocks - held))
    waits_for = _why_no_more(facts, state)
    return WantedBlocks(free, balance.blocks_in_debt, not waits_for, " ".join(balance.reasons), waits_for)


def _why_no_more(facts: MemoryFacts, state: MemoryState) -> str:
    if facts.holders is None:
        return "the agent does not know which pods hold which blocks"
    if state.ladder.has_done_something:
        return "the ladder must first give back what it took from pods"
    if facts.word is None:
        return "the API server has not answered since the agent started"
    return ""


def _debt(state: MemoryState, balance: Balance) -> Debt | None:
    if not balance.debt:
        return None
    return Debt(balance.debt, state.debt.since if state.debt is not None else state.clock)
