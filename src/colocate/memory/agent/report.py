"""The report of a turn: where a node's memory is, and why. `colocate memory` prints it. Pure."""

import msgspec

from colocate.memory import (
    ActionResult,
    MemoryBar,
    MemoryDecision,
    MemoryFacts,
    MemorySettings,
    RestoreLimit,
    RungHere,
    explain,
    memory_bar,
    returning,
)
from colocate.model.memory import Bytes


class PodReport(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that holds blocks."""

    pod: str
    uid: str
    blocks: tuple[str, ...]
    used: Bytes
    limit: Bytes | None
    """Limit of its control group; None where it has none."""
    may_use: Bytes | None
    """The limit that it should have by its blocks; None where the pod as a whole has none."""
    done: tuple[str, ...] = ()
    """What the ladder has done to the pod."""


class MemoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """One turn, for people and programs."""

    node: str
    at: float
    """Seconds since the epoch."""
    resource: str
    block_size: Bytes
    off: bool
    dry_run: bool
    restored: bool
    """Whether colocation is off and fully undone: no block is offered, and no limit is ours."""
    bar: MemoryBar
    offered: int
    held: int
    withdrawn: int
    """Held blocks that are being taken back: no other pod gets them."""
    returning: int = 0
    """Blocks that wait for the cool-down."""
    returning_in: float = 0.0
    """Seconds until those blocks are offered."""
    debt: Bytes
    due: Bytes
    rung: str
    """The rung that the ladder is on; empty where it is not in use."""
    pods: tuple[PodReport, ...]
    rungs: tuple[RungHere, ...]
    sentences: tuple[str, ...]
    """Every figure that led to the number of blocks, and what the ladder does."""
    silent: tuple[str, ...]
    """Sources that did not answer, so that the figures lack them."""
    unstored: str = ""
    """Why the state cannot be stored, which stops all offers; empty where it can."""
    switch_unstored: str = ""
    """Why the switch will not survive a restart of the agent; empty where it will."""
    without_eviction: tuple[str, ...] = ()
    """Namespaces of colocated pods in which this agent may not evict."""


def evictor_binding(namespace: str) -> str:
    """The command that lets an agent with the account of examples/memory evict pods of a namespace."""
    return (
        f"kubectl -n {namespace} create rolebinding colocate-memory-evictor "
        "--clusterrole=colocate-memory-evictor --serviceaccount=kube-system:colocate-agent"
    )


def report(
    decision: MemoryDecision,
    facts: MemoryFacts,
    settings: MemorySettings,
    silent: tuple[str, ...],
    at: float,
    *,
    dry_run: bool,
    switch_unstored: str = "",
) -> MemoryReport:
    """The report of a decision; `at` is seconds since the epoch."""
    state = decision.state
    listed, healthy = state.blocks.listed, state.blocks.healthy()
    returning_blocks, returning_in = returning(decision, settings)
    return MemoryReport(
        node=facts.node_name,
        at=at,
        resource=settings.resource,
        block_size=int(settings.block_size),
        off=facts.off,
        dry_run=dry_run,
        restored=facts.off and not healthy and not _unrestored(decision, facts),
        bar=memory_bar(decision),
        offered=decision.offered,
        held=decision.held,
        withdrawn=len(listed) - len(healthy),
        returning=returning_blocks,
        returning_in=returning_in,
        debt=decision.balance.debt,
        due=decision.balance.due,
        rung=str(state.ladder.rung or ""),
        pods=tuple(
            PodReport(
                pod=str(each.ref),
                uid=each.uid,
                blocks=each.ids,
                used=each.used + each.besides,
                limit=each.reading.limit if each.reading else None,
                may_use=each.limits.pod if each.limits else None,
                done=_done_to(each.uid, decision),
            )
            for each in decision.pods
        ),
        rungs=decision.rungs,
        sentences=explain(decision, settings),
        silent=silent,
        unstored=facts.unstored,
        switch_unstored=switch_unstored,
        without_eviction=tuple(sorted(facts.without_eviction)),
    )


def _unrestored(decision: MemoryDecision, facts: MemoryFacts) -> bool:
    """Whether anything of ours is left on a pod, or may be."""
    planned = {action.pod.uid for action in decision.plan.actions if isinstance(action, RestoreLimit)}
    # Containers' own groups are not read in a turn; only the outcome tells that they were restored.
    done = {
        outcome.action.pod.uid
        for outcome in facts.outcomes
        if isinstance(outcome.action, RestoreLimit)
        and outcome.action.containers
        and outcome.result in (ActionResult.DONE, ActionResult.GONE)
    }
    unknown = any(each.reading is not None and not each.pod.containers for each in decision.pods)
    ladder = decision.state.ladder
    return ladder.has_done_something or ladder.demotion_is_ours or unknown or not planned <= done


def _done_to(uid: str, decision: MemoryDecision) -> tuple[str, ...]:
    ladder = decision.state.ladder
    done = (
        ("throttled", uid in ladder.throttled),
        ("pages on far nodes", uid in ladder.moved),
        ("to leave", uid in ladder.leaving),
    )
    return tuple(what for what, so in done if so)
