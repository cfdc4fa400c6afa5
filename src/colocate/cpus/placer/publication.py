"""Tells the cluster which CCXs of this node have room, in an annotation of the node; optional.

Written only when it changes, and seldom: what happens in between comes with the next write. Taken away when the
placer ends or is off, so that no scheduler goes by old news.
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
from colocate.cpus.placer.placer import Placer
from colocate.cpus.placer.section import CpusSection
from colocate.crashpoints import reached
from colocate.errors import UserError
from colocate.host.identity import this_node
from colocate.model.cpu_topology import FREE_CCXS
from colocate.telemetry import Event

INTERVAL = 10.0
"""Seconds from one write to the next."""
_LAST_PAUSE = 300.0
_FAREWELL = 5.0


_REMEDIES = Remedies(kubeconfig="a kubeconfig with cpus.kubeconfig or KUBECONFIG", context="", insecure="")


class _Target(msgspec.Struct, frozen=True):
    """Whom the annotation of which node is written to."""

    connection: Connection
    node: str


async def publish(section: Callable[[], CpusSection], reloaded: Watched, placer: Placer) -> None:
    """Publish as configured now, until cancelled. Containers are placed without a cluster, too.

    A kubeconfig that is not there or not sound is looked for again: on a node's first boot the kubelet's own comes
    later than the placer. One that changes is followed.
    """
    clock, trouble = placer.clock, ""
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
                CcxPublication(client, target.node, placer).run(),
                _until_another(target, section, reloaded, seen, placer.clock),
            )


async def _until_another(
    now: _Target, section: Callable[[], CpusSection], reloaded: Watched, seen: int, clock: Clock
) -> None:
    """Return once another target is configured; what cannot be read leaves this one in use."""
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
    """None where nothing is to be published; UserError where no API server can be found."""
    if not section.publish:
        return None
    kubeconfig = Path(section.kubeconfig) if section.kubeconfig else None
    found = connection.find(Flags(kubeconfig=kubeconfig), remedies=_REMEDIES)
    return _Target(found, section.node or this_node())


class CcxPublication:
    """Keeps the annotation of one node."""

    def __init__(self, client: Client, node: str, placer: Placer) -> None:
        self._client = client
        self._node = node
        self._placer = placer
        self._said: str | None = ""
        """What the node says, as far as is known: at first nothing is."""
        self._trouble = ""

    async def run(self) -> None:
        """Until cancelled; then it is taken away."""
        clock, seen, pause = self._placer.clock, 0, INTERVAL
        try:
            while True:
                if await self._say(self._text()):
                    pause = INTERVAL
                    seen = await self._placer.changed.beyond(seen)
                else:
                    pause = min(_LAST_PAUSE, 2 * pause)
                await clock.sleep(pause * (1 + random.random() / 10))
        finally:
            await self._withdraw()

    def _text(self) -> str | None:
        book = self._placer.book
        if book is None or not book.active:
            return None
        wishes = self._placer.policy.defaults.namespaces
        return announcement_of(book.allocator, {name for name, each in wishes.items() if each.strict})

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
            async with deadline(self._placer.clock, _FAREWELL):
                await self._say(None)
        except TimeoutError:
            telemetry.logger().warning(
                Event.PLACEMENT_UNPUBLISHED, node=self._node, reason=f"no answer within {_FAREWELL:g} s"
            )
