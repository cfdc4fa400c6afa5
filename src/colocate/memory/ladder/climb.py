"""The way up: what each rung does to free what is due, pod by pod in giving order, and when the next rung is tried.

A rung that has nothing left to try is not busy: the next one is then tried at once.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from colocate.memory.actions import Demote, MovePages, PodAction, Reclaim, Throttle
from colocate.memory.colocated import droppable, unyielding
from colocate.memory.ladder import demotion
from colocate.memory.ladder.eviction import on_their_way, send_away
from colocate.memory.ladder.rungs import WORTH_IT, LadderStep, LadderTurn, Situation
from colocate.memory.ladder.state import Ladder, Moved, Throttled, put, stand
from colocate.memory.limits import whole_pages
from colocate.memory.settings import Rung, height
from colocate.model.figures import amount
from colocate.model.memory import Bytes, PodMemory

_CUSHION: Bytes = 16 << 20
"""Page cache that a pod keeps. On cgroup v1 it yields to allocations while the limit is lowered; a throttled pod
without any would read its own program from disk again and again."""


def withdraw(ladder: Ladder, situation: Situation) -> LadderStep:
    """Do nothing: the plan's list of blocks has withdrawn the free ones."""
    return LadderStep(ladder, busy=True)


def reclaim(ladder: Ladder, situation: Situation) -> LadderStep:
    """Drop page cache that the kernel chooses."""
    settings, swap_free = situation.settings, situation.facts.node.swap_free
    remaining = _outstanding(ladder, situation)
    leave = _CUSHION if situation.facts.controls.cgroup == 1 and not settings.swap else 0
    actions: list[PodAction] = []
    notes: list[str] = []
    for each, reading in situation.readable:
        most = min(remaining, droppable(reading, settings.swap, swap_free) - leave)
        size = whole_pages(min(most, int(reading.usage * settings.reclaim_share)))
        if size < WORTH_IT or ladder.has_given_up(Rung.RECLAIM, each.uid):
            continue
        if situation.facts.controls.cgroup == 1 and not each.may_be_bound:
            notes.append(
                f"No memory is reclaimed from {each.ref}: the limit would also bind containers without blocks."
            )
            continue
        if _suffers(reading, situation):
            notes.append(f"No memory is reclaimed from {each.ref}: {_suffering(reading, situation)}.")
            continue
        reason = f"{_needed(situation)}; {each.ref} has {amount(reading.file)} of page cache."
        actions.append(Reclaim(pod=each.ref, bytes=size, leave=leave, reason=reason))
        remaining -= size
    return LadderStep(ladder, tuple(actions), tuple(notes), busy=bool(actions))


def throttle(ladder: Ladder, situation: Situation) -> LadderStep:
    """Hold pods at what they use, less what is due; never below what they cannot give, nor lower while under
    pressure."""
    remaining = _outstanding(ladder, situation)
    actions: list[PodAction] = []
    notes: list[str] = []
    busy = False
    for each, reading in situation.readable:
        if remaining <= 0:
            break
        if ladder.has_given_up(Rung.THROTTLE, each.uid):
            continue
        if not each.may_be_bound:
            notes.append(f"{each.ref} is not throttled: that would also slow down containers without blocks.")
            continue
        done = ladder.throttled.get(each.uid)
        if _suffers(reading, situation):
            notes.append(
                f"{each.ref} is throttled at what it uses, no lower: {_suffering(reading, situation)}."
            )
        high = _high(reading, remaining, situation)
        if done is not None:
            high = min(high, done.to)
        remaining -= max(0, reading.usage - high)
        busy = True
        if done is not None and done.to == high == reading.high:
            continue
        reason = f"{_needed(situation)}; {each.ref} uses {amount(reading.usage)} and may not grow."
        before = done.before if done is not None else reading.high
        actions.append(Throttle(pod=each.ref, high=high, before=before, reason=reason))
        ladder = msgspec.structs.replace(
            ladder, throttled=put(ladder.throttled, each.uid, Throttled(before, high))
        )
    return LadderStep(ladder, tuple(actions), tuple(notes), busy=busy)


def throttle_again(ladder: Ladder, situation: Situation) -> LadderStep:
    """Throttle pods whose memory.high was never set, because the agent was killed before."""
    actions: list[PodAction] = []
    for each, reading in situation.readable:
        done = ladder.throttled.get(each.uid)
        if done is None or reading.high != done.before or done.before == done.to:
            continue
        if ladder.has_given_up(Rung.THROTTLE, each.uid) or not each.may_be_bound:
            continue
        high = max(done.to, _high(reading, reading.usage, situation))
        reason = f"{each.ref} may not grow, but its memory.high is not set."
        actions.append(Throttle(pod=each.ref, high=high, before=done.before, reason=reason))
        throttled = put(ladder.throttled, each.uid, Throttled(done.before, high))
        ladder = msgspec.structs.replace(ladder, throttled=throttled)
    return LadderStep(ladder, tuple(actions))


def _high(reading: PodMemory, wanted: Bytes, situation: Situation) -> Bytes:
    floor = unyielding(reading, situation.settings.swap, situation.facts.node.swap_free)
    floor += min(reading.file, _CUSHION)
    lowest = reading.usage if _suffers(reading, situation) else min(floor, reading.usage)
    high = max(reading.usage - wanted, lowest)
    return whole_pages(high if reading.high is None else min(high, reading.high))


def _suffers(reading: PodMemory, situation: Situation) -> bool:
    return _lost(reading) > situation.settings.reclaim_pressure


def _suffering(reading: PodMemory, situation: Situation) -> str:
    return (
        f"it already loses {_lost(reading):g} % of its time to memory pressure, more than the "
        f"{situation.settings.reclaim_pressure:g} % allowed"
    )


def _lost(reading: PodMemory) -> float:
    return reading.pressure.some10 if reading.pressure else 0.0


def far(ladder: Ladder, situation: Situation) -> LadderStep:
    """Move pages to far nodes while these have room: by the kernel's demotion where possible, else process by
    process."""
    remaining = _outstanding(ladder, situation)
    reserve = {node.id: int(node.total * situation.settings.far_reserve) for node in situation.far}
    room = {node.id: max(0, node.free - reserve[node.id]) for node in situation.far}
    near = tuple(node.id for node in situation.facts.node.numa if node.id not in situation.far_ids)
    controls = situation.facts.controls
    demotes = not demotion.why_no_demotion(controls, situation.far_ids, situation.settings)
    actions: list[PodAction] = []
    notes: list[str] = []
    for each, reading in situation.readable:
        lies = reading.numa
        sources = near if lies is None else tuple(id for id in near if lies.get(id, 0) > 0)
        there = each.near if lies is None else min(each.near, sum(lies.get(id, 0) for id in near))
        by_kernel = demotes and not (why := _why_not_demoted(reading, situation))
        if demotes and not by_kernel and not controls.migrate:
            notes.append(f"{each.ref} is not demoted: {why}.")
            continue
        targets = _demotion_targets(sources, situation) if by_kernel else tuple(id for id in room if room[id])
        free = sum(room[id] for id in targets)
        if by_kernel:
            free = min((room[id] for id in targets), default=0)
        size = whole_pages(min(remaining, there, free))
        if size < WORTH_IT or ladder.has_given_up(Rung.FAR, each.uid):
            continue
        names = ", ".join(map(str, targets))
        reason = f"{_needed(situation)}; NUMA {names} has room for {amount(free)}."
        if by_kernel:
            reason = f"{reason} The way back: {demotion.way_back(controls)}."
            leave = {id: reserve[id] for id in targets}
            actions.append(Demote(pod=each.ref, sources=near, leave=leave, bytes=size, reason=reason))
            # It is unknown which of them the kernel fills.
            room |= {id: max(0, room[id] - size) for id in targets}
        else:
            actions.append(
                MovePages(pod=each.ref, sources=sources, targets=targets, bytes=size, reason=reason)
            )
            _fill(room, size)
        before = ladder.moved[each.uid].before if each.uid in ladder.moved else each.far
        ladder = msgspec.structs.replace(
            ladder, moved=put(ladder.moved, each.uid, Moved(before, sources, targets))
        )
        remaining -= size
    if not actions:
        notes.append(f"Far NUMA nodes have room for {amount(sum(room.values()))}; no pages are moved there.")
    return LadderStep(ladder, tuple(actions), tuple(notes), busy=bool(actions))


def _why_not_demoted(reading: PodMemory, situation: Situation) -> str:
    """Why the kernel may not demote a pod's memory; empty where it may."""
    if not situation.settings.swap and situation.facts.node.swap_free and reading.swap_limit != 0:
        return "the kernel might swap instead, which memory.swap does not allow"
    return ""


def _demotion_targets(sources: Sequence[int], situation: Situation) -> tuple[int, ...]:
    nodes, kernel = situation.far, situation.facts.controls.demotion
    return tuple(dict.fromkeys(id for source in sources for id in demotion.targets(source, kernel, nodes)))


def _fill(room: dict[int, Bytes], size: Bytes) -> None:
    for id, free in room.items():
        taken = min(free, size)
        room[id] -= taken
        size -= taken


def _outstanding(ladder: Ladder, situation: Situation) -> Bytes:
    return situation.due - on_their_way(ladder, situation)


def _needed(situation: Situation) -> str:
    return f"Online work needs {amount(situation.due)}"


GIVE: Mapping[Rung, Callable[[Ladder, Situation], LadderStep]] = {
    Rung.WITHDRAW: withdraw,
    Rung.RECLAIM: reclaim,
    Rung.THROTTLE: throttle,
    Rung.FAR: far,
    Rung.EVICT: send_away,
    Rung.RECREATE: send_away,
}


def up(ladder: Ladder, situation: Situation) -> LadderTurn:
    """Climb as far as needed, and act on the rung that is reached."""
    ladder = msgspec.structs.replace(ladder, calm_since=None, undid_at=None)
    notes: list[str] = []
    rung = ladder.rung
    if rung is None:
        rung = Rung.WITHDRAW
        ladder = stand(ladder, rung, situation.now)
        notes.append(f"There is a debt of {amount(situation.debt)}, so free blocks are withdrawn.")
    higher = _next(ladder, rung, situation)
    if higher is None and not situation.presses:
        ladder = msgspec.structs.replace(ladder, since=situation.now)
        if ladder.throttled:
            notes.append(
                f"{amount(situation.due)} is due, too little to evict a pod; throttled pods stay throttled."
            )
    elif higher is not None and (why := _is_over(ladder, rung, situation)):
        notes.append(f"{why}; {higher} comes next.")
        rung, ladder = higher, stand(ladder, higher, situation.now)
    actions: tuple[PodAction, ...] = ()
    stood_on = []
    while True:
        stood_on.append(rung)
        step = _try(rung, ladder, situation)
        ladder, actions = step.ladder, step.actions
        notes += step.notes
        if step.busy or not situation.presses:
            break
        higher = situation.above(rung)
        if higher is None:
            notes.append(f"No rung is left to try; a debt of {amount(situation.debt)} remains.")
            break
        notes.append(f"{rung} has nothing left to try; {higher} comes next.")
        rung, ladder = higher, stand(ladder, higher, situation.now)
    if height(rung) > height(Rung.THROTTLE) and situation.here(Rung.THROTTLE).is_here:
        again = throttle_again(ladder, situation)
        ladder, actions = again.ladder, (*again.actions, *actions)
    return LadderTurn(ladder, actions, tuple(notes), tuple(stood_on))


def _next(ladder: Ladder, rung: Rung, situation: Situation) -> Rung | None:
    """The rung that follows when this one has had its time; None where this one has no deadline now."""
    higher = situation.above(rung)
    # Pages on far nodes do less harm than a lasting throttle, so far replaces it even within the tolerance.
    ends_a_throttle = rung is Rung.THROTTLE and higher is Rung.FAR and bool(ladder.throttled)
    return higher if situation.presses or ends_a_throttle else None


def _try(rung: Rung, ladder: Ladder, situation: Situation) -> LadderStep:
    here = situation.here(rung)
    if not here.is_here:
        # It was available when the ladder reached it.
        return LadderStep(ladder, notes=(f"{rung} is no longer available: {here.missing}.",))
    return GIVE[rung](ladder, situation)


def _is_over(ladder: Ladder, rung: Rung, situation: Situation) -> str:
    """Why the time of a rung is over; empty where it is not."""
    waited = situation.now - ladder.since
    if waited >= situation.here(rung).deadline:
        return f"{rung} has not freed {amount(situation.due)} within {situation.here(rung).deadline:g} s"
    if situation.hurries and (rung is Rung.WITHDRAW or waited > 0):
        share = situation.settings.hurry
        return f"{amount(situation.due)} is due, more than {share:.0%} of the margin, so {rung} gets no more time"
    return ""
