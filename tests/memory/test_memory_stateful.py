"""Whatever happens to a node, in whatever order: what always holds.

The agent dies between any two turns (`Machine.turn` goes through JSON), actions fail, the API goes away, pods come
and go and grow. After every history memory returns, and everything must be as it was.
"""

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from colocate.memory.actions import (
    ActionResult,
    Ease,
    Evict,
    MovePages,
    PodAction,
    Reclaim,
    Recreate,
    RestoreLimit,
    ReturnPages,
    Throttle,
    Unthrottle,
)
from colocate.memory.blocks import BlockState, block_id, number
from colocate.memory.decision import MemoryDecision, decide
from colocate.memory.explanation import explain, memory_bar
from colocate.memory.settings import RUNGS, Rung, height
from colocate.memory.state import MemoryState, state_from_json, state_to_json
from colocate.model.memory import ContainerMemory
from tests.memory.nodes import GIB, SETTINGS, V1, V2, Guest, Machine

SIZE = SETTINGS.block_size
GIVES: dict[type, Rung] = {
    Reclaim: Rung.RECLAIM,
    Throttle: Rung.THROTTLE,
    MovePages: Rung.FAR,
    Evict: Rung.EVICT,
    Recreate: Rung.RECREATE,
}
NAMESPACES = ["batch", "colocation-memory"]
bindings = st.frozensets(st.sampled_from(NAMESPACES))
amounts = st.integers(0, 60 * 16).map(lambda sixteenths: sixteenths * GIB // 16)
small = st.integers(0, 8 * 16).map(lambda sixteenths: sixteenths * GIB // 16)


pods = st.builds(
    lambda many, used, cache, **other: Guest(
        uid="", ids=("",) * many, anon=used - used * cache // 16, cache=used * cache // 16, **other
    ),
    st.integers(4, 40),
    st.integers(SIZE // 4, SIZE),
    st.integers(0, 16),
    priority=st.integers(0, 2),
    controller=st.sampled_from(["ReplicaSet", ""]),
    may_move=st.booleans(),
    namespace=st.sampled_from(NAMESPACES),
    sidecar_without_limit=st.sampled_from([False, False, False, True]),
    others=st.sampled_from([(), (), (ContainerMemory(name="db", limit=8 * GIB, request=8 * GIB),)]),
)
"""Uses are of one block."""


def may_use(guest: Guest, blocks: int) -> int | None:
    besides = sum(each.limit or 0 for each in guest.others)
    return None if guest.sidecar_without_limit else blocks * SIZE + besides


class AnyHistory(RuleBasedStateMachine):
    """A node, and a turn of decisions after every change."""

    @initialize(
        v2=st.booleans(), far=st.sampled_from([0, 4, 32]), online=small, guests=st.lists(pods, min_size=1)
    )
    def start(self, v2: bool, far: int, online: int, guests: list[Guest]) -> None:
        self.machine = Machine(controls=V2 if v2 else V1, far_total=far * GIB, online=online, guests=[])
        self.count = 0
        self.stay_far: set[str] = set()
        """Pods whose pages could not be moved back once, which is not tried again."""
        self.decision = self.turn()
        for guest in guests:
            self.a_pod_comes(guest)

    def turn(self, seconds: float = 10.0) -> MemoryDecision:
        before = self.machine.state
        facts = self.machine.facts()
        plain = decide(before, facts, self.machine.settings, self.machine.now + seconds)
        decision = self.machine.turn(seconds)
        assert msgspec.to_builtins(decision.state) == msgspec.to_builtins(plain.state), (
            "JSON changed something"
        )
        assert decision.plan == plain.plan
        self.decision = decision
        check_debt(before, decision)
        check_blocks(before, decision)
        check_pods(before, decision, {guest.uid for guest in self.machine.guests})
        check_rights(decision, self.machine)
        check_requests(decision, {guest.uid: guest for guest in self.machine.guests})
        check_eases(before, decision, {guest.uid: guest for guest in self.machine.guests})
        check_ladder(before, decision, self.machine.off)
        return decision

    @rule(seconds=st.sampled_from([1.0, 10.0, 30.0, 3600.0, -5.0]), well=st.booleans())
    def time_passes(self, seconds: float, well: bool) -> None:
        decision = self.turn(seconds)
        if well:
            self.machine.carry_out(decision)

    @rule(
        share=st.floats(0, 2),
        turns=st.integers(1, 12),
        result=st.sampled_from([ActionResult.DONE, ActionResult.DONE, ActionResult.DONE, *ActionResult]),
    )
    def online_work_presses(self, share: float, turns: int, result: ActionResult) -> None:
        """It takes all that is kept but this share of the margin, and actions end in one way."""
        machine, balance = self.machine, self.decision.balance
        eaten = int(share * self.decision.expected.margin) - sum(self.decision.usage.besides.values())
        machine.online = max(0, balance.capacity - balance.safety - balance.used - machine.system + eaten)
        machine.online = min(machine.online, machine.total)
        for _ in range(turns):
            decision = self.turn()
            machine.carry_out(decision, result)
            if result not in (ActionResult.DONE, ActionResult.GONE):
                self.stay_far |= {
                    action.pod.uid for action in decision.plan.actions if isinstance(action, ReturnPages)
                }

    @rule(online=amounts, system=small)
    def online_work_changes(self, online: int, system: int) -> None:
        self.machine.online = min(online, 55 * GIB)
        self.machine.system = system
        self.machine.carry_out(self.turn())

    @rule(wanted=pods)
    def a_pod_comes(self, wanted: Guest) -> None:
        """With as many blocks as it wants and the kubelet can give, and a use in the same proportion."""
        held = {id for guest in self.machine.guests for id in guest.ids}
        free = sorted(self.machine.state.blocks.healthy() - held)[: len(wanted.ids)]
        if not free:
            return
        self.count += 1
        guest = msgspec.structs.replace(
            wanted,
            uid=f"guest-{self.count}",
            ids=tuple(free),
            anon=wanted.anon * len(free),
            cache=wanted.cache * len(free),
            limit=may_use(wanted, len(free)),
            created=float(self.count),
        )
        self.machine.guests.append(guest)
        self.machine.carry_out(self.turn())

    @precondition(lambda self: self.machine.guests)
    @rule(data=st.data(), share=st.floats(0, 1), cache=st.floats(0, 1), pressure=st.sampled_from([0.0, 50.0]))
    def a_pod_changes(self, data: Any, share: float, cache: float, pressure: float) -> None:
        guest = data.draw(st.sampled_from(self.machine.guests))
        most = min(len(guest.ids) * SIZE, guest.high or len(guest.ids) * SIZE)
        guest.anon, guest.cache = int(most * share * (1 - cache)), int(most * share * cache)
        guest.far = min(guest.far, guest.anon + guest.cache)
        guest.pressure = pressure
        self.machine.carry_out(self.turn())

    @precondition(lambda self: self.machine.guests)
    @rule(data=st.data())
    def a_pod_ends(self, data: Any) -> None:
        self.machine.guests.remove(data.draw(st.sampled_from(self.machine.guests)))
        self.machine.carry_out(self.turn())

    @precondition(lambda self: self.machine.guests)
    @rule(data=st.data(), turns=st.integers(1, 8), back=st.booleans())
    def a_pod_is_not_listed_while_it_holds_its_blocks(self, data: Any, turns: int, back: bool) -> None:
        """A kubelet that has just started knows of too few; where it has lost its checkpoint, for good."""
        if data.draw(st.booleans()):
            self.online_work_presses(0.4, 7, ActionResult.DONE)
        guests, ladder = self.machine.guests, self.machine.state.ladder
        if not guests:
            return
        touched = [each for each in guests if ladder.has_done_something_to(each.uid)]
        guest = data.draw(st.sampled_from(touched or guests))
        guest.listed = False
        for _ in range(turns):
            self.machine.carry_out(self.turn())
        guest.listed = back

    @rule()
    def the_state_is_lost(self) -> None:
        """Pages on far nodes are then forgotten, which is said; what throttles a pod is not."""
        if all(guest.listed and not guest.far for guest in self.machine.guests):
            self.machine.state = MemoryState()
            self.machine.carry_out(self.turn())

    @rule(
        what=st.sampled_from(["api", "off", "cordoned", "memory_pressure", "holders_known"]),
        turns=st.integers(1, 5),
    )
    def a_switch_is_turned_for_a_while(self, what: str, turns: int) -> None:
        usually = getattr(self.machine, what)
        setattr(self.machine, what, not usually)
        for _ in range(turns):
            self.machine.carry_out(self.turn())
        setattr(self.machine, what, usually)
        self.machine.carry_out(self.turn())

    @rule(evict=bindings, create=bindings)
    def rights_are_bound_and_taken_away(self, evict: frozenset[str], create: frozenset[str]) -> None:
        self.machine.without_eviction, self.machine.without_creation = evict, create
        self.machine.carry_out(self.turn())

    @rule(online=small)
    def memory_returns(self, online: int) -> None:
        self.machine.online = online
        for _ in range(20):
            self.machine.carry_out(self.turn())

    @invariant()
    def no_more_is_promised_than_there_is(self) -> None:
        balance = self.decision.balance
        held = max(balance.allocated, balance.used)
        promised = self.decision.offered * SIZE + held + balance.online + balance.safety
        assert promised <= balance.capacity + balance.debt

    @invariant()
    def a_debt_is_known_for_as_long_as_there_is_one(self) -> None:
        debt = self.decision.state.debt
        assert (debt is not None) == (self.decision.balance.debt > 0)
        if debt is not None:
            assert self.decision.state.ladder.rung is not None

    @invariant()
    def what_was_done_to_a_pod_that_runs_is_remembered_whether_listed_or_not(self) -> None:
        for guest in self.machine.guests:
            if guest.high is not None:
                assert guest.uid in self.machine.state.ladder.throttled

    @invariant()
    def the_bar_is_the_capacity(self) -> None:
        parts = memory_bar(self.decision)
        assert sum(size for _, size in parts.parts()) == parts.capacity
        assert all(size >= 0 for _, size in parts.parts())

    @invariant()
    def everything_is_explained(self) -> None:
        assert all(sentence.endswith(".") for sentence in explain(self.decision, self.machine.settings))
        assert all(action.reason.endswith(".") for action in self.decision.plan.actions)
        blocks = self.decision.plan.blocks
        assert blocks.reason.endswith(".") == bool(blocks.withdrawn or blocks.offered)

    def teardown(self) -> None:
        """Memory returns, and within a while everything is as if nothing had been."""
        if not hasattr(self, "machine"):
            return
        machine = self.machine
        machine.online = machine.system = 0
        machine.api, machine.off, machine.cordoned, machine.memory_pressure = True, False, False, False
        machine.holders_known = True
        for guest in machine.guests:
            guest.listed = True
            if guest.others:
                # What it requested besides may have been sold: blocks would stay in debt for as long as it is used.
                guest.anon = guest.cache = guest.far = 0
        machine.live(1200, step=30)
        last = machine.turn()
        assert last.state.debt is None
        assert last.state.ladder.rung is None
        assert not last.state.ladder.has_done_something
        for guest in machine.guests:
            assert guest.high is None
            assert guest.far == 0 or guest.uid in self.stay_far
            assert guest.limit == may_use(guest, len(guest.ids))
        assert last.balance.free - last.offered <= SETTINGS.hysteresis
        assert {id for guest in machine.guests for id in guest.ids} <= last.state.blocks.healthy()


def check_debt(before: MemoryState, decision: MemoryDecision) -> None:
    """A debt that goes on keeps its date."""
    old, new = before.debt, decision.state.debt
    assert old is None or new is None or new.since == old.since


def check_blocks(before: MemoryState, decision: MemoryDecision) -> None:
    """Ids stay, leave in order, and leave at once when there is no room; the plan is the list that is stored."""
    old = {block.id: block for block in before.blocks.listed}
    new = {block.id: block for block in decision.state.blocks.listed}
    held = {id for ids in decision.state.holders.values() for id in ids}
    assert list(new) == sorted(new, key=lambda id: number(id) or 0)
    assert held <= new.keys()
    assert decision.offered <= decision.wanted.free, "shrinking is at once"
    plan = decision.plan.blocks
    assert plan.devices == decision.state.blocks.devices()
    assert not (plan.withdrawn and plan.offered)
    assert {id for id in new if new[id].state is BlockState.WITHDRAWN} <= held
    healthy = decision.state.blocks.healthy()
    assert healthy.isdisjoint(plan.withdrawn)
    assert before.blocks.healthy() - healthy <= set(plan.withdrawn), "no block goes unsaid"
    assert healthy - before.blocks.healthy() <= {*plan.offered, *held}, "no block comes unsaid"
    for id in old.keys() - new.keys():
        assert id not in held
        assert old[id].state is BlockState.WITHDRAWN or id in plan.withdrawn
    free = [id for id in new if id not in held and new[id].state is BlockState.HEALTHY]
    gone = [id for id in plan.withdrawn if id not in held]
    assert all((number(one) or 0) > (number(other) or 0) for one in gone for other in free)
    assert gone == sorted(gone, key=lambda id: -(number(id) or 0))
    come = [number(id) or 0 for id in plan.offered if id not in held]
    below = {block_id(n) for n in range(max(come, default=0))}
    assert below <= decision.state.blocks.healthy() | held, "the lowest come first"


def check_pods(before: MemoryState, decision: MemoryDecision, guests: set[str]) -> None:
    """No action is on a pod without blocks, and no pod is touched while nothing presses."""
    balance, margin = decision.balance, decision.expected.margin
    for action in decision.plan.actions:
        if not isinstance(action, PodAction):
            continue
        assert action.pod.uid in decision.state.holders
        if type(action) in GIVES:
            assert decision.state.holders[action.pod.uid]
            assert balance.due > 0
        if isinstance(action, Evict | Recreate | Throttle | MovePages):
            assert before.ladder.rung is not None or balance.due > margin * SETTINGS.tolerance
        if isinstance(action, Evict | Recreate):
            assert balance.due > margin * SETTINGS.tolerance


def check_rights(decision: MemoryDecision, machine: Machine) -> None:
    """No pod is evicted or counted on where the agent may not evict; none moves where it may not create pods."""
    chosen = {uid for uid, entry in decision.state.ladder.leaving.items() if not entry.accepted}
    for action in decision.plan.actions:
        if isinstance(action, Evict | Recreate):
            assert action.pod.namespace not in machine.without_eviction
            assert action.pod.uid in chosen
        if isinstance(action, Recreate):
            assert action.pod.namespace not in machine.without_creation


def check_requests(decision: MemoryDecision, guests: dict[str, Guest]) -> None:
    """No pod has to leave or is moved that uses no more than was reserved for it besides its blocks."""
    for action in decision.plan.actions:
        if isinstance(action, Evict | Recreate | MovePages):
            guest = guests[action.pod.uid]
            assert guest.anon + guest.cache > sum(each.request or 0 for each in guest.others)


def check_eases(before: MemoryState, decision: MemoryDecision, guests: dict[str, Guest]) -> None:
    """Who is eased may use more than now; what was stored may be more still, where easing to that has failed."""
    for action in decision.plan.actions:
        if isinstance(action, Ease):
            high = guests[action.pod.uid].high
            assert action.pod.uid in before.ladder.throttled
            assert high is not None
            assert action.high > high


def check_ladder(before: MemoryState, decision: MemoryDecision, off: bool) -> None:
    """Up in order, down in the other, and whatever is done is remembered first."""
    here = [each.rung for each in decision.rungs if each.is_here]
    stood_on, old, new = decision.plan.stood_on, before.ladder.rung, decision.state.ladder
    if stood_on:
        assert height(stood_on[0]) >= height(old) or decision.balance.due == 0
        places = [RUNGS.index(rung) for rung in stood_on]
        between = [rung for rung in here if places[0] <= RUNGS.index(rung) <= places[-1]]
        assert [rung for rung in stood_on if rung in here] == between
        skipped = [rung for rung in here if height(old) < RUNGS.index(rung) < places[0]]
        assert skipped in ([], [Rung.WITHDRAW])
    for action in decision.plan.actions:
        if type(action) in GIVES:
            rung = GIVES[type(action)]
            # A throttle that was stored and is not there is set from any rung above.
            again = isinstance(action, Throttle) and action.pod.uid in before.ladder.throttled
            assert again or rung in stood_on or (rung is Rung.EVICT and Rung.RECREATE in stood_on)
            assert not isinstance(action, ReturnPages | Unthrottle | RestoreLimit)
        match action:
            case Throttle(pod=pod):
                assert pod.uid in new.throttled
            case MovePages(pod=pod):
                assert pod.uid in new.moved
            case Evict(pod=pod) | Recreate(pod=pod):
                assert pod.uid in new.leaving
            case Ease():
                assert not new.moved
                assert decision.balance.slack >= SIZE
            case Unthrottle():
                assert not new.moved or off
            case RestoreLimit(pod=pod):
                assert not new.moved or off
                assert pod.uid not in new.throttled
    assert not decision.plan.blocks.offered or not before.ladder.has_done_something
    assert state_from_json(state_to_json(decision.state)) == decision.state


AnyHistory.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestAnyHistory = AnyHistory.TestCase
