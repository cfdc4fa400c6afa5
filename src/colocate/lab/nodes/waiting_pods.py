"""Records events on pods that wait for a node or a scheduler that this cluster does not have.

A real cluster does not report these cases. Nothing is decided or changed here.
"""

from collections.abc import Iterator

from colocate.lab.api.objects import Object, at, uid_of
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.resources import NODES, PODS
from colocate.lab.scheduler.recorder import Recorder
from colocate.model.figures import some

PATIENCE = 5.0
"""Seconds in which a node may still register, or a scheduler in another process may still see the pod."""
_PAUSE = 1.0
"""Seconds between two checks."""
_REPORTER = "colocate-lab"


class WaitingPods:
    """Checks waiting pods."""

    def __init__(self, registry: ObjectRegistry, schedulers: frozenset[str]) -> None:
        self._registry = registry
        self._store = registry.store
        self._schedulers = schedulers
        self._recorder = Recorder(registry, "lab")
        self._since: dict[str, float] = {}
        """When each pod was first seen waiting, by uid."""
        self._told: set[str] = set()

    async def run(self) -> None:
        """Check periodically until cancelled."""
        clock = self._registry.clock
        while True:
            turn = self._store.changed.count
            self._look(clock.monotonic())
            if self._told >= self._since.keys():
                await self._store.changed.beyond(turn)
            await clock.sleep(_PAUSE)

    def _look(self, now: float) -> None:
        """Record an event on each pod that has waited long enough."""
        nodes = sorted(stored.key.name for stored in self._store.items(NODES.storage))
        waiting = {uid_of(pod): (pod, why) for pod in self._pods() if (why := self._why(pod, nodes))}
        self._since = {uid: self._since.get(uid, now) for uid in waiting}
        self._told &= set(waiting)
        for uid, (pod, (reason, message)) in waiting.items():
            if uid not in self._told and now - self._since[uid] >= PATIENCE:
                self._told.add(uid)
                self._recorder.record(pod, reason, "Waiting", message, warning=True, reporter=_REPORTER)

    def _pods(self) -> Iterator[Object]:
        for stored in self._store.items(PODS.storage):
            if at(stored.body, "status", "phase") in (None, "Pending"):
                yield stored.body

    def _why(self, pod: Object, nodes: list[str]) -> tuple[str, str] | None:
        node, scheduler = at(pod, "spec", "nodeName"), at(pod, "spec", "schedulerName")
        if node and node not in nodes:
            return "NoSuchNode", (
                f"spec.nodeName is {node}, and there is no such node here ({some(nodes)}): remove it, or start the "
                f"lab with --node-name {node}, which gives this machine that name"
            )
        if not node and scheduler not in self._schedulers and not at(pod, "status", "conditions"):
            return "NoSuchScheduler", (
                f"spec.schedulerName is {scheduler}, and no scheduler of that name has looked at it; the lab runs "
                f"{some(sorted(self._schedulers))}: start one of that name, or give --scheduler-config"
            )
        return None
