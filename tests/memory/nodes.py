"""Nodes for tests: figures in GiB, of which the facts follow as a kernel would tell them."""

from collections.abc import Sequence

import msgspec

from colocate.memory.actions import (
    ActionOutcome,
    ActionResult,
    Demote,
    Ease,
    Evict,
    MovePages,
    PodAction,
    Reclaim,
    Recreate,
    RestoreLimit,
    ReturnPages,
    SetLimit,
    SwitchDemotion,
    Throttle,
    Unthrottle,
)
from colocate.memory.decision import MemoryDecision, decide
from colocate.memory.facts import MemoryFacts
from colocate.memory.forecast import Instant
from colocate.memory.settings import MemorySettings
from colocate.memory.state import MemoryState, state_from_json, state_to_json
from colocate.model.memory import (
    Bytes,
    ContainerMemory,
    Demotion,
    KubeletReserves,
    MemoryControls,
    NodeMemory,
    NodeWord,
    NumaMemory,
    OurHigh,
    PodIdentity,
    PodMemory,
    Pressure,
)
from colocate.model.pod import QosClass

MIB = 1 << 20
GIB = 1 << 30
V2 = MemoryControls(cgroup=2, reclaim=True, high=True, swap=True, migrate=True)
V1 = MemoryControls(cgroup=1, migrate=True)
DEMOTES = MemoryControls(
    cgroup=2, reclaim=True, high=True, swap=True, demotion=Demotion(tiers={0: 4, 2: 22}, promotes=True)
)
"""A kernel that demotes, and an agent without a right over processes."""
SETTINGS = MemorySettings(forecast=Instant())


class Guest(msgspec.Struct, kw_only=True):
    """A colocated pod as the test moves it about."""

    uid: str
    ids: tuple[str, ...]
    namespace: str = "colocation-memory"
    anon: Bytes = 0
    cache: Bytes = 0
    far: Bytes = 0
    high: Bytes | None = None
    our_high: OurHigh | None = None
    limit: Bytes | None = None
    swap_limit: Bytes | None = 0
    pressure: float = 0.0
    static: bool = False
    priority: int = 0
    created: float = 0.0
    controller: str = "ReplicaSet"
    may_move: bool = False
    sidecar_without_limit: bool = False
    others: tuple[ContainerMemory, ...] = ()
    """Containers besides."""
    started: bool = True
    known: bool = True
    """Whether the API has told of its containers."""
    asks: bool = True
    """Whether it asks for the blocks that it is said to hold."""
    readable: bool = True
    """Whether its control group can be read."""
    listed: bool = True
    """Whether the kubelet says that it holds its blocks."""

    def reading(self, two_nodes: bool) -> PodMemory:
        used = self.anon + self.cache
        return PodMemory(
            uid=self.uid,
            qos=QosClass.BEST_EFFORT,
            usage=used,
            anon=self.anon,
            file=self.cache,
            inactive_file=0,
            limit=self.limit,
            high=self.high,
            our_high=None if self.high is None else self.our_high,
            swap_limit=self.swap_limit,
            pressure=Pressure(some10=self.pressure),
            numa={0: used - self.far, 2: self.far} if two_nodes else {0: used},
        )

    def identity(self) -> PodIdentity:
        sidecar = (ContainerMemory(name="sidecar"),) if self.sidecar_without_limit else ()
        return PodIdentity(
            uid=self.uid,
            namespace=self.namespace,
            name=self.uid,
            static=self.static,
            priority=self.priority,
            created=self.created,
            controller=self.controller,
            may_move=self.may_move,
            started=self.started,
            containers=()
            if not self.known
            else (
                ContainerMemory(name="main", blocks=len(self.ids) * self.asks),
                *sidecar,
                *self.others,
            ),
        )


class Machine(msgspec.Struct, kw_only=True):
    """A node of which a test says who uses what, and which carries plans out."""

    total: Bytes = 64 * GIB
    system: Bytes = 2 * GIB
    online: Bytes = 8 * GIB
    """Of one Burstable pod."""
    far_total: Bytes = 0
    guests: list[Guest] = []
    controls: MemoryControls = V2
    settings: MemorySettings = SETTINGS
    state: MemoryState = MemoryState()
    now: float = 1000.0
    api: bool = True
    without_eviction: frozenset[str] = frozenset()
    without_creation: frozenset[str] = frozenset()
    heard: bool = True
    """Whether the API has said anything of the node since the agent started."""
    off: bool = False
    unstored: str = ""
    """Why the state cannot be stored."""
    absent: bool = False
    """Whether the API knows no such node."""
    cordoned: bool = False
    memory_pressure: bool = False
    holders_known: bool = True
    outcomes: tuple[ActionOutcome, ...] = ()
    far_taken: Bytes = 0
    """By others."""
    swap_free: Bytes = 0
    by_node: bool = True
    """Whether it is known on which NUMA nodes the memory of pods lies."""

    def facts(self) -> MemoryFacts:
        far_used = self.far_taken + sum(guest.far for guest in self.guests)
        used = self.system + self.online + sum(guest.anon + guest.cache - guest.far for guest in self.guests)
        cache = sum(guest.cache for guest in self.guests)
        free = max(0, self.total - used)
        numa: tuple[NumaMemory, ...] = (
            NumaMemory(id=0, total=self.total, free=free, distances={0: 10, 2: 20}),
        )
        if self.far_total:
            far = self.far_total - far_used
            numa += (
                NumaMemory(id=2, total=self.far_total, free=far, has_cpus=False, distances={0: 20, 2: 10}),
            )
        all_free = sum(node.free for node in numa)
        online = PodMemory(
            uid="online",
            qos=QosClass.BURSTABLE,
            usage=self.online,
            anon=self.online,
            file=0,
            inactive_file=0,
            numa={0: self.online},
        )
        readable = [guest for guest in self.guests if guest.readable]
        readings = (online, *(guest.reading(bool(self.far_total)) for guest in readable))
        if not self.by_node:
            readings = tuple(msgspec.structs.replace(each, numa=None) for each in readings)
        return MemoryFacts(
            node_name="node-1",
            boot="b",
            node=NodeMemory(
                total=self.total + self.far_total,
                available=min(self.total + self.far_total, all_free + cache),
                free=all_free,
                inactive_file=0,
                swap_total=self.swap_free,
                swap_free=self.swap_free,
                numa=numa,
            ),
            word=self.word() if self.heard else None,
            controls=self.controls,
            readings=readings,
            pods=tuple(guest.identity() for guest in self.guests),
            holders={guest.uid: guest.ids for guest in self.guests if guest.listed}
            if self.holders_known
            else None,
            api=self.api,
            without_eviction=self.without_eviction,
            without_creation=self.without_creation,
            off=self.off,
            unstored=self.unstored,
            outcomes=self.outcomes,
        )

    def word(self) -> NodeWord:
        if self.absent:
            return NodeWord(absent=True)
        reserves = KubeletReserves(capacity=self.total, allocatable=self.total - GIB, eviction_hard=GIB // 4)
        return NodeWord(cordoned=self.cordoned, memory_pressure=self.memory_pressure, reserves=reserves)

    def turn(self, seconds: float = 10.0) -> MemoryDecision:
        """Time passes, and one turn is decided, with a death of the agent between any two."""
        self.now += seconds
        decision = decide(state_from_json(state_to_json(self.state)), self.facts(), self.settings, self.now)
        self.state, self.outcomes = decision.state, ()
        return decision

    def carry_out(self, decision: MemoryDecision, result: ActionResult = ActionResult.DONE) -> None:
        """Do what was planned for pods, as the machine would, and report it."""
        actions = [action for action in decision.plan.actions if isinstance(action, PodAction)]
        if result is ActionResult.DONE:
            for switch in decision.plan.actions:
                if isinstance(switch, SwitchDemotion):
                    self.switch_demotion(switch.on)
            for action in actions:
                self._do(action)
        self.outcomes = tuple(ActionOutcome(action, result, "as the test wants") for action in actions)

    def switch_demotion(self, on: bool) -> None:
        demotion = msgspec.structs.replace(self.controls.demotion, enabled=on)
        self.controls = msgspec.structs.replace(self.controls, demotion=demotion)

    def live(self, seconds: float, step: float = 10.0) -> list[PodAction]:
        """Turns in which everything is carried out; all that was done to pods."""
        done: list[PodAction] = []
        for _ in range(int(seconds / step)):
            decision = self.turn(step)
            done += [action for action in decision.plan.actions if isinstance(action, PodAction)]
            self.carry_out(decision)
        return done

    def _do(self, action: PodAction) -> None:
        guest = next((each for each in self.guests if each.uid == action.pod.uid), None)
        if guest is None:
            return
        match action:
            case SetLimit(limit=limit, swap=swap):
                guest.limit = guest.limit if limit is None else limit
                guest.swap_limit = guest.swap_limit if swap is None else swap
            case Reclaim(bytes=size):
                guest.cache = max(0, guest.cache - size)
            case RestoreLimit(to=to):
                guest.limit = to
                guest.swap_limit = guest.swap_limit if guest.sidecar_without_limit else None
            case Throttle(high=high, before=before):
                guest.high, guest.our_high = high, OurHigh(before)
                guest.cache = max(0, min(guest.cache, high - guest.anon))
            case Ease(high=high):
                guest.high = high
            case Unthrottle(to=to):
                guest.high, guest.our_high = to, None
            case MovePages(bytes=size) | Demote(bytes=size):
                guest.far = min(guest.anon + guest.cache, guest.far + size)
            case ReturnPages(bytes=size):
                guest.far = max(0, guest.far - size)
            case Evict() | Recreate():
                self.guests.remove(guest)
        guest.far = min(guest.far, guest.anon + guest.cache)


def ids(*numbers: int) -> tuple[str, ...]:
    return tuple(f"CM-{number:04d}" for number in numbers)


def kinds(actions: Sequence[object]) -> list[str]:
    """The names of actions, each once in a row."""
    names = [type(action).__name__ for action in actions]
    return [name for place, name in enumerate(names) if place == 0 or names[place - 1] != name]
