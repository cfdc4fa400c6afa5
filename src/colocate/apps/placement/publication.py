"""Tells the cluster which CCXs of this node have room, in an annotation of the node; optional.

Written only when it changes, and seldom: what happens in between comes with the next write. Taken away when the
placer ends or is off, so that no scheduler goes by old news.
"""

import asyncio
import random
from pathlib import Path

from colocate import telemetry
from colocate.aio import deadline
from colocate.apps.config.schema import CpusSection
from colocate.apps.placement.placer import Placer
from colocate.cluster import connection
from colocate.cluster.client import Client, ClientSettings
from colocate.cluster.connection import Flags, Remedies
from colocate.cluster.errors import ClusterError
from colocate.cluster.node_status import set_extended_resources
from colocate.cpus import announcement_of
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


async def publishing(section: CpusSection, placer: Placer) -> None:
    """Publish as configured, until cancelled. Containers are placed without a cluster, too."""
    kubeconfig = Path(section.kubeconfig) if section.kubeconfig else None
    try:
        found = connection.find(Flags(kubeconfig=kubeconfig), remedies=_REMEDIES)
    except UserError as error:
        telemetry.logger().error(Event.PLACEMENT_UNPUBLISHED, reason=str(error))
        await asyncio.Event().wait()
        return
    async with Client(found, placer.clock, ClientSettings(timeout=10.0, attempts=2)) as client:
        await CcxPublication(client, section.node or this_node(), placer).run()


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
