"""Publishes the free CCXs of this node in an annotation of the node; optional.

The annotation is written when it changes, at most every few seconds. It is removed when the placer ends or is off, so
that no scheduler uses old data.
"""

import random
from collections.abc import Callable
from pathlib import Path

import msgspec

from colocate import telemetry
from colocate.aio import Watched, deadline, first
from colocate.backoff import BackOff
from colocate.clock import Clock
from colocate.cluster import connection
from colocate.cluster.client import Client, ClientSettings
from colocate.cluster.connection import Connection, Flags, Remedies
from colocate.cluster.errors import ClusterError
from colocate.cluster.node_status import set_extended_resources
from colocate.cpus import announcement_of
from colocate.cpus.placer.keeper import PlacementKeeper
from colocate.cpus.placer.section import CpusSection
from colocate.crashpoints import reached
from colocate.errors import UserError
from colocate.host.identity import this_node
from colocate.model.cpu_topology import FREE_CCXS
from colocate.telemetry import Event

INTERVAL = 10.0
"""Least seconds from one write to the next."""
_LAST_PAUSE = 300.0
_FAREWELL = 5.0


_REMEDIES = Remedies(kubeconfig="a kubeconfig with cpus.kubeconfig or KUBECONFIG", context="", insecure="")


class _Target(msgspec.Struct, frozen=True):
    """The API server and the node whose annotation is written."""

    connection: Connection
    node: str


async def publish(section: Callable[[], CpusSection], reloaded: Watched, keeper: PlacementKeeper) -> None:
    """Publish as configured, until cancelled. Placement itself needs no cluster.

    A kubeconfig that is missing or broken is read again later: on a node's first boot, the kubelet's kubeconfig is
    written after the placer has started. A changed kubeconfig is followed.
    """
    clock, trouble = keeper.clock, ""
    again = BackOff(INTERVAL, _LAST_PAUSE, random.random)
    while True:
        seen = reloaded.count
        try:
            target = _target(section())
        except UserError as error:
            if str(error) != trouble:
                trouble = str(error)
                telemetry.logger().error(Event.PLACEMENT_UNPUBLISHED, reason=trouble)
            await first(clock.sleep(again.pause()), reloaded.beyond(seen))
            continue
        trouble = ""
        again.reset()
        if target is None:
            await reloaded.beyond(seen)
            continue
        async with Client(target.connection, clock, ClientSettings(timeout=10.0, attempts=2)) as client:
            await first(
                CcxPublication(client, target.node, keeper).run(),
                _until_another(target, section, reloaded, seen, keeper.clock),
            )


async def _until_another(
    now: _Target, section: Callable[[], CpusSection], reloaded: Watched, seen: int, clock: Clock
) -> None:
    """Return once another target is configured; an unreadable kubeconfig leaves this one in use."""
    trouble = ""
    while True:
        await first(clock.sleep(_LAST_PAUSE), reloaded.beyond(seen))
        seen = reloaded.count
        try:
            if _target(section()) != now:
                return
            trouble = ""
        except UserError as error:
            if str(error) != trouble:
                trouble = str(error)
                telemetry.logger().warning(
                    Event.PLACEMENT_UNPUBLISHED, reason=trouble, effect="the old connection stays in use"
                )


def _target(section: CpusSection) -> _Target | None:
    """None if publishing is off; UserError if no API server can be found."""
    if not section.publish:
        return None
    kubeconfig = Path(section.kubeconfig) if section.kubeconfig else None
    found = connection.find(Flags(kubeconfig=kubeconfig), remedies=_REMEDIES)
    return _Target(found, section.node or this_node())


class CcxPublication:
    """Keeps the annotation of one node up to date."""

    def __init__(self, client: Client, node: str, keeper: PlacementKeeper) -> None:
        self._client = client
        self._node = node
        self._keeper = keeper
        self._said: str | None = ""
        """The annotation as last written; an empty string before the first write."""
        self._trouble = ""

    async def run(self) -> None:
        """Write until cancelled; then remove the annotation."""
        clock, seen, pause = self._keeper.clock, 0, INTERVAL
        try:
            while True:
                if await self._say(self._text()):
                    pause = INTERVAL
                    seen = await self._keeper.changed.beyond(seen)
                else:
                    pause = min(_LAST_PAUSE, 2 * pause)
                await clock.sleep(pause * (1 + random.random() / 10))
        finally:
            await self._withdraw()

    def _text(self) -> str | None:
        placements = self._keeper.placements
        if placements is None or not placements.active:
            return None
        return announcement_of(placements.allocator, self._keeper.section.defaults.strict_namespaces())

    async def _say(self, text: str | None) -> bool:
        if text == self._said:
            return True
        reached("placement.publish")
        try:
            await set_extended_resources(self._client, self._node, {}, annotations={FREE_CCXS: text})
        except (ClusterError, UserError) as error:
            if str(error) != self._trouble:
                telemetry.logger().warning(Event.PLACEMENT_UNPUBLISHED, node=self._node, reason=str(error))
            self._trouble = str(error)
            return False
        reached("placement.published")
        self._said, self._trouble = text, ""
        return True

    async def _withdraw(self) -> None:
        try:
            async with deadline(self._keeper.clock, _FAREWELL):
                await self._say(None)
        except TimeoutError:
            telemetry.logger().warning(
                Event.PLACEMENT_UNPUBLISHED, node=self._node, reason=f"no answer within {_FAREWELL:g} s"
            )
