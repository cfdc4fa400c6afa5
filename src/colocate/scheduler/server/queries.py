"""What a running scheduler tells people who ask: why a pod went where it went, all facts, nodes by their load.

GET /explain?pod=NAMESPACE/NAME     its decision, or 404 with what to do; with &node=NODE why that node had its score,
                                    with &all=true why each had
GET /decisions?last=20              the latest, the youngest first
GET /snapshot                       all facts, from which the same answers follow anywhere
GET /top                            nodes by real and requested load, with their heat where taints are kept
GET /state                          whether it is ready, how the caches and each query of samples are doing
"""

import asyncio
import re
from collections.abc import Mapping

import msgspec

from colocate.clock import Clock
from colocate.cluster.changes import Key
from colocate.cluster.usage import SignalHealth, UsagePoller
from colocate.cluster.watch_health import WatchHealth
from colocate.load import snapshot, top
from colocate.scheduler.loop.decision_log import DecisionLog
from colocate.scheduler.loop.table_feed import TableFeed
from colocate.scheduler.loop.taints import Tainting
from colocate.scheduler.server.extender import Tell
from colocate.scheduler.server.judge import Judge
from colocate.scheduler.server.refusal import RequestOutcome, RequestRefused
from colocate.scheduler.settings import Act, SchedulerConfig

_MOST = 1000


class SchedulerState(msgspec.Struct, frozen=True):
    """How what is known came to be known."""

    ready: bool
    unready: tuple[str, ...]
    shadow: bool
    act: tuple[Act, ...]
    nodes: WatchHealth
    pods: WatchHealth
    samples: tuple[SignalHealth, ...]
    sampled_nodes: int
    clock_offset: float | None
    decisions: int


class Telling:
    """Answers people."""

    def __init__(
        self,
        config: SchedulerConfig,
        facts: TableFeed,
        poller: UsagePoller,
        judge: Judge,
        decisions: DecisionLog,
        clock: Clock,
        tainting: Tainting | None = None,
    ) -> None:
        self._config = config
        self._facts = facts
        self._poller = poller
        self._judge = judge
        self._decisions = decisions
        self._clock = clock
        self._tainting = tainting
        self._taking = asyncio.Lock()

    def pages(self) -> dict[str, Tell]:
        return {
            "/explain": self._explain,
            "/decisions": self._latest,
            "/snapshot": self._snapshot,
            "/top": self._top,
            "/state": self._state,
        }

    async def _explain(self, query: Mapping[str, str]) -> bytes:
        pod = query.get("pod", "")
        if not pod:
            raise RequestRefused(
                400, RequestOutcome.UNREADABLE, "the pod is missing; give one as NAMESPACE/NAME"
            )
        node, every = query.get("node", ""), query.get("all", "false")
        if every not in ("true", "false"):
            raise RequestRefused(
                400, RequestOutcome.UNREADABLE, f"all is {every[:20]!r}; write true or false"
            )
        if node:
            told = self._decisions.find_node(pod, node)
        elif every == "true":
            told = await self._decisions.find_all(pod)
        else:
            told = self._decisions.find(pod)
        if told is None:
            raise RequestRefused(404, RequestOutcome.UNKNOWN, self._not_kept(pod))
        if node and not told.explanation.nodes and not told.refused:
            raise RequestRefused(404, RequestOutcome.UNKNOWN, self._no_candidate(pod, node))
        return msgspec.json.encode(told)

    def _not_kept(self, pod: str) -> str:
        known = self._facts.pods.get(Key(*pod.split("/", 1)) if "/" in pod else Key("default", pod))
        if known is not None and known.spec.node_name:
            found = f"{pod[:200]} is on {known.spec.node_name}, but its decision is not kept"
        else:
            found = f"no decision is kept for the pod {pod[:200]!r}"
        if Act.EXTENDER not in self._config.act:
            return (
                f"{found}: kube-scheduler does not ask this process (act: [taints]), which only taints hot nodes; "
                f"'colocate scheduler top' lists them"
            )
        keep = self._config.decisions.keep
        full = len(self._decisions) >= keep
        younger = f", or {keep} newer decisions have replaced it (decisions.keep)" if full else ""
        return f"{found}: this replica has not judged it since it started{younger}; give the pod as NAMESPACE/NAME"

    def _no_candidate(self, pod: str, node: str) -> str:
        if not self._decisions.all_known(pod):
            return (
                f"only the best nodes are still kept for {pod[:200]}, and {node[:200]!r} is not one of them; raise "
                f"decisions.memory to keep more"
            )
        known = "" if node in self._facts.table.nodes else ", and the cluster now has no node with that name"
        return (
            f"{node[:200]!r} was not a candidate for {pod[:200]}{known}: kube-scheduler asks only about nodes that "
            f"pass its own plugins, and in a large cluster only about some of these"
        )

    async def _latest(self, query: Mapping[str, str]) -> bytes:
        text = query.get("last", "20")
        if not re.fullmatch("[0-9]{1,10}", text) or not 0 < int(text) <= _MOST:
            raise RequestRefused(
                400, RequestOutcome.UNREADABLE, f"last is {text[:20]!r}; write a number from 1 to {_MOST}"
            )
        return msgspec.json.encode(self._decisions.latest(int(text)))

    async def _snapshot(self, query: Mapping[str, str]) -> bytes:
        self._facts.table.advance(self._clock.time())
        written = bytearray()
        # One at a time, for each is large; and bit by bit, for kube-scheduler waits for answers meanwhile.
        async with self._taking:
            for piece in snapshot.pieces(snapshot.take(self._facts.table)):
                written += piece
                await asyncio.sleep(0)
        return bytes(written)

    async def _top(self, query: Mapping[str, str]) -> bytes:
        self._facts.table.advance(self._clock.time())
        shown = self._tainting.shown() if self._tainting else {}
        heats = {name: level for name, level in shown.items() if level >= 0}
        return msgspec.json.encode(top(self._facts.table, heats))

    async def _state(self, query: Mapping[str, str]) -> bytes:
        facts, latest = self._facts, self._poller.latest
        unready = tuple(self._judge.unready())
        return msgspec.json.encode(
            SchedulerState(
                not unready,
                unready,
                self._config.shadow,
                self._config.act,
                facts.nodes.health,
                facts.pods.health,
                latest.health,
                len(latest.nodes),
                latest.clock_offset,
                len(self._decisions),
            )
        )
