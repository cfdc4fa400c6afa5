"""An event on the pod and on the node for every rung, and for its way back. No I/O."""

from typing import cast

import msgspec
import pytest

from colocate.memory.actions import ActionResult, PodRef, Reclaim
from colocate.memory.agent.cluster_view import ClusterView
from colocate.memory.agent.notices import MemoryNotices
from colocate.memory.agent.report import report
from colocate.memory.settings import Rung
from tests.memory.nodes import GIB, SETTINGS, Guest, Machine, ids

BLOCKS = ids(*range(60))


class Heard:
    """A cluster that keeps what it is told."""

    def __init__(self) -> None:
        self.pod: list[tuple[str, str, bool]] = []
        self.node: list[tuple[str, str, bool]] = []

    def tell_pod(self, pod: PodRef, reason: str, message: str, *, warning: bool = False) -> None:
        assert pod.uid == "guest"
        self.pod.append((reason, message, warning))

    def tell_node(self, reason: str, message: str, *, warning: bool = False) -> None:
        self.node.append((reason, message, warning))


class Told:
    """A machine whose every turn is told."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.heard = Heard()
        self._teller = MemoryNotices(cast(ClusterView, self.heard), SETTINGS.resource)

    def live(self, turns: int, result: ActionResult = ActionResult.DONE) -> None:
        for _ in range(turns):
            self._teller.outcomes(self.machine.outcomes)
            facts = self.machine.facts()
            decision = self.machine.turn()
            self._teller.turn(decision, report(decision, facts, SETTINGS, (), 0.0, dry_run=False))
            self.machine.carry_out(decision, result)

    def press(self, share: float = 0.4) -> None:
        decision = self.machine.turn()
        balance = decision.balance
        self.machine.online = balance.capacity - balance.safety - balance.used - self.machine.system
        self.machine.online += int(share * decision.expected.margin)


def told(*without: Rung, **pod: object) -> Told:
    """A machine with one pod, and all rungs but these."""
    guest = Guest(uid="guest", ids=BLOCKS, anon=20 * GIB, cache=GIB // 2, limit=30 * GIB)
    for name, value in pod.items():
        setattr(guest, name, value)
    settings = msgspec.structs.replace(SETTINGS, without=without)
    made = Told(Machine(guests=[guest], far_total=32 * GIB, settings=settings))
    made.live(1)
    made.press()
    return made


BELOW = (Rung.RECLAIM, Rung.THROTTLE, Rung.FAR)
WAYS = {
    Rung.RECLAIM: ("ColocationMemoryReclaimed", "ColocationMemoryReclaimFailed", ()),
    Rung.THROTTLE: ("ColocationMemoryThrottled", "ColocationMemoryThrottleFailed", (Rung.RECLAIM,)),
    Rung.FAR: ("ColocationMemoryMovedFar", "ColocationMemoryMoveFarFailed", (Rung.RECLAIM, Rung.THROTTLE)),
    Rung.EVICT: (
        "ColocationMemoryEvicted",
        "ColocationMemoryEvictionFailed",
        (Rung.RECLAIM, Rung.THROTTLE, Rung.FAR),
    ),
    Rung.RECREATE: (
        "ColocationMemoryMovedElsewhere",
        "ColocationMemoryMoveElsewhereFailed",
        (Rung.RECLAIM, Rung.THROTTLE, Rung.FAR),
    ),
}
"""By rung, the events on the pod, done and failed, and what is left out to be there at once."""


def test_blocks_that_are_withdrawn_and_offered_again_are_told_on_the_node() -> None:
    node = told()
    node.heard.node.clear()
    node.live(1)
    withdrawn, ladder = node.heard.node
    assert withdrawn[0] == "ColocationMemoryWithdrawn"
    assert "of colocate.dev/colocation-memory withdrawn (CM-" in withdrawn[1]
    assert ladder == ("ColocationMemoryLadder", ladder[1], False)
    assert ladder[1].startswith("The ladder is on rung withdraw.")
    node.machine.online = 8 * GIB
    node.live(30)
    assert "ColocationMemoryOffered" in [reason for reason, _, _ in node.heard.node]
    assert any(message.startswith("The ladder is no longer in use.") for _, message, _ in node.heard.node)
    assert node.heard.pod == []


@pytest.mark.parametrize("rung", WAYS, ids=str)
def test_every_rung_is_told_once_on_the_pod_and_on_the_node(rung: Rung) -> None:
    reason, _, without = WAYS[rung]
    bare = {"may_move": True, "controller": ""} if rung is Rung.RECREATE else {}
    node = told(*without, **bare)
    node.heard.node.clear()
    for _ in range(20):
        node.live(1)
        if node.heard.pod:
            break
    node.live(1)
    (event,) = [event for event in node.heard.pod if event[0] == reason]
    assert "Online work needs" in event[1]
    assert event[2] is (rung in (Rung.EVICT, Rung.RECREATE)), "an end is a warning"
    (stands,) = [event for event in node.heard.node if f"The ladder is on rung {rung}." in event[1]]
    assert (stands[0], stands[2]) == ("ColocationMemoryLadder", True)


@pytest.mark.parametrize("rung", WAYS, ids=str)
def test_a_rung_that_does_not_work_is_told_on_the_pod_as_a_warning(rung: Rung) -> None:
    reason, failed, without = WAYS[rung]
    bare = {"may_move": True, "controller": ""} if rung is Rung.RECREATE else {}
    node = told(*without, **bare)
    node.live(20, ActionResult.FAILED)
    events = [event for event in node.heard.pod if event[0] == failed]
    assert len(events) == 1
    assert events[0][2]
    assert "failed, as the test wants" in events[0][1]
    assert reason not in [event[0] for event in node.heard.pod]


def test_the_way_back_is_told_on_the_pod_and_on_the_node() -> None:
    node = told(Rung.RECLAIM)
    node.live(12)
    reasons = [reason for reason, _, _ in node.heard.pod]
    assert reasons == ["ColocationMemoryThrottled", "ColocationMemoryMovedFar"]
    node.machine.online = 8 * GIB
    node.live(40)
    reasons = [reason for reason, _, _ in node.heard.pod]
    assert reasons[2:] == ["ColocationMemoryReturned", "ColocationMemoryRestored"]
    assert any("is no longer in use" in message for _, message, _ in node.heard.node)


def test_switched_off_a_pod_is_told_that_its_limit_is_restored() -> None:
    node = told()
    node.machine.online, node.machine.off = 8 * GIB, True
    node.live(4)
    ((reason, message, warning),) = node.heard.pod
    assert (reason, warning) == ("ColocationMemoryRestored", False)
    assert "switched off" in message


def test_what_is_done_again_and_again_is_told_once() -> None:
    node = told(anon=GIB, cache=20 * GIB)
    reclaims = 0
    for _ in range(6):
        node.live(1)
        node.machine.online += 2 * GIB * bool(reclaims)
        reclaims += sum(isinstance(outcome.action, Reclaim) for outcome in node.machine.outcomes)
    assert reclaims > 1
    assert [reason for reason, _, _ in node.heard.pod].count("ColocationMemoryReclaimed") == 1
