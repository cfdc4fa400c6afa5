"""Explains in sentences why a node offers so many blocks, and shows as a bar where its memory is."""

import msgspec

from colocate.memory.blocks import BlockState
from colocate.memory.decision import MemoryDecision
from colocate.memory.settings import MemorySettings
from colocate.memory.state import MemoryState
from colocate.model.figures import amount, count, some
from colocate.model.memory import Bytes


class MemoryBar(msgspec.Struct, frozen=True, kw_only=True):
    """A node's memory from left to right; the parts add up to the capacity."""

    capacity: Bytes
    system: Bytes
    online: Bytes
    colocated: Bytes
    """Held by colocated pods and backed by memory."""
    debt: Bytes
    """Held by colocated pods and taken from the safety: the part of the debt that there is memory for."""
    published: Bytes
    """Offered as free blocks."""
    idle: Bytes
    """None of these: less than a block, or waiting for the cool-down."""
    safety: Bytes
    """What is left of the safety."""

    def parts(self) -> tuple[tuple[str, Bytes], ...]:
        names = ("system", "online", "colocated", "debt", "published", "idle", "safety")
        return tuple((name, getattr(self, name)) for name in names)


def memory_bar(decision: MemoryDecision) -> MemoryBar:
    """The bar of a decision."""
    balance = decision.balance
    rest = balance.capacity

    def take(size: Bytes) -> Bytes:
        nonlocal rest
        taken = min(max(0, size), rest)
        rest -= taken
        return taken

    system = take(min(decision.usage.system, balance.online))
    online = take(balance.online - system)
    colocated = take(balance.held - balance.debt)
    debt = take(min(balance.debt, balance.held))
    published = take(decision.offered * balance.block_size)
    safety = take(balance.safety)
    return MemoryBar(
        capacity=balance.capacity,
        system=system,
        online=online,
        colocated=colocated,
        debt=debt,
        published=published,
        idle=rest,
        safety=safety,
    )


def explain(decision: MemoryDecision, settings: MemorySettings) -> tuple[str, ...]:
    """Every figure that led to the number of blocks, in the order of the calculation."""
    return (
        *_unstored(decision),
        *_hearsay(decision),
        *decision.usage.reasons,
        *decision.expected.reasons,
        *decision.safety.reasons,
        *decision.balance.reasons,
        *_blocks(decision, settings),
        *_unsold(decision, settings),
        *_standing(decision),
    )


def _unstored(decision: MemoryDecision) -> list[str]:
    if not decision.unstored:
        return []
    return [
        f"The agent cannot store its state ({decision.unstored}). Until it can, it offers and gives out no block, "
        "and does to pods only what it can undo without that file."
    ]


def _hearsay(decision: MemoryDecision) -> list[str]:
    word = decision.word
    if not decision.word_is_old or word is None:
        return []
    marks = (("unknown", word.absent), ("cordoned", word.cordoned), ("being drained", word.draining))
    said = [what for what, so in (*marks, ("under MemoryPressure", word.memory_pressure)) if so]
    return [
        "The API server has not answered since the agent started. The agent uses the last known reserves of the "
        f"kubelet; then the node was {' and '.join(said) or 'not cordoned, drained or under MemoryPressure'}."
    ]


def _blocks(decision: MemoryDecision, settings: MemorySettings) -> list[str]:
    listed = decision.state.blocks.listed
    free = decision.offered
    leaving = sum(block.state is not BlockState.HEALTHY for block in listed)
    sentences = [
        f"So the node offers {count(free, 'free block')} of {settings.resource}; {decision.held} held "
        f"({leaving} being taken back)."
    ]
    growth = decision.state.blocks.growth
    missing = decision.wanted.free - free
    if (
        not decision.wanted.may_grow
        and missing <= 0
        and decision.wanted.free == 0
        and not decision.balance.debt
        and not decision.unstored  # Then it is the first sentence.
    ):
        sentences.append(decision.wanted.reason)
    elif growth is not None:
        many, seconds = returning(decision, settings)
        verb = "comes" if many == 1 else "come"
        sentences.append(
            f"{count(many, 'more block')} {verb} in {seconds:.0f} s (cool-down), if there is room all that time."
        )
    elif decision.wanted.may_grow and 0 < missing <= settings.hysteresis:
        sentences.append(
            f"{count(missing, 'more block')} would fit, but not more than the hysteresis of {settings.hysteresis}."
        )
    elif missing > 0:
        sentences.append(f"{count(missing, 'more block')} would fit, but {decision.wanted.waits_for}.")
    return sentences


def returning(decision: MemoryDecision, settings: MemorySettings) -> tuple[int, float]:
    """How many blocks wait for the cool-down, and how many seconds it still takes."""
    growth = decision.state.blocks.growth
    if growth is None:
        return 0, 0.0
    return growth.least, max(0.0, growth.since + settings.cool_down - decision.state.clock)


def _unsold(decision: MemoryDecision, settings: MemorySettings) -> list[str]:
    strangers = [str(each.ref) for each in decision.pods if each.ids and not each.entitled]
    if not strangers:
        return []
    return [
        f"{some(strangers)} hold{'s' * (len(strangers) == 1)} blocks, but only namespace "
        f"{', '.join(sorted(settings.namespaces))} may use them. Such pods give back first, and their limits stay "
        "as they are."
    ]


def _standing(decision: MemoryDecision) -> list[str]:
    state = decision.state
    if state.debt is None and state.ladder.rung is None:
        return [_debt_in_words(state)]
    sentences = [_debt_in_words(state)]
    names = {each.uid: str(each.ref) for each in decision.pods}
    if state.ladder.rung is not None:
        sentences.append(f"The ladder is on rung {state.ladder.rung}.")
    sentences += [
        f"{names.get(uid, uid)} is throttled at {amount(done.to)}."
        for uid, done in state.ladder.throttled.items()
    ]
    sentences += [
        f"{names.get(uid, uid)} has pages on NUMA {', '.join(map(str, done.targets))}."
        for uid, done in state.ladder.moved.items()
    ]
    if state.ladder.demotion_is_ours:
        sentences.append("The agent has switched the kernel's demotion on for that; it was off before.")
    sentences += [
        f"{names.get(uid, uid)} has to leave ({entry.by})"
        + (f": {entry.waits_for}." if entry.waits_for else ".")
        for uid, entry in state.ladder.leaving.items()
    ]
    return [*sentences, *decision.plan.notes]


def _debt_in_words(state: MemoryState) -> str:
    """The debt and its age, as a sentence."""
    if state.debt is None:
        return "There is no debt."
    return (
        f"There is a debt of {amount(state.debt.bytes)}; it began {state.clock - state.debt.since:.0f} s ago."
    )
