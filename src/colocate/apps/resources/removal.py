"""Take an extended resource off a node for good: wait until its kubelet has let go, remove the key, see it stay away.

Refuses while a pod holds the resource and while a plugin advertises it. The patch tests the number that was seen,
so of two writers one is refused. What happens is reported as data, step by step; whoever runs it shows it. It can
be stopped at any moment: there is one write, and the server does it whole or not at all.
"""

from contextlib import suppress

import msgspec

from colocate.apps.resources.errors import NotRemoved, Refused
from colocate.apps.resources.observe import Look, Observer
from colocate.apps.resources.steps import (
    POLL,
    STAYS_AWAY,
    Changed,
    Patching,
    PutBack,
    Report,
    Trouble,
    Waiting,
    Watching,
)
from colocate.clock import Clock
from colocate.cluster.client import Client
from colocate.cluster.errors import Conflict, ServerError
from colocate.cluster.json_patch import Patch
from colocate.cluster.node_status import patch_for
from colocate.cluster.resources import NODES
from colocate.devices.extended_resources import (
    GRACE,
    LATE,
    SYNC,
    Before,
    ExtendedResource,
    State,
    remember,
)
from colocate.errors import Unavailable, UserError

UNCONFIRMED = 6 * SYNC
"""Seconds after which a kubelet that has not dropped allocatable either is not syncing."""
PATIENCE = GRACE + 2 * LATE
"""Seconds after which a kubelet that has not let go will not: a plugin is alive."""
_PODS_NAMED = 10


class Settings(msgspec.Struct, frozen=True):
    """How far to go."""

    timeout: float = 900.0
    """Seconds for all of it."""
    now: bool = False
    """Do not wait for the kubelet to let go."""


_KEPT = (State.STALE, State.UNHEALTHY)
"""The kubelet would put it back, and may let go of it in time."""


class Removal:
    """One resource of one node, on its way out."""

    def __init__(
        self,
        client: Client,
        observer: Observer,
        clock: Clock,
        node: str,
        name: str,
        settings: Settings,
        report: Report,
    ) -> None:
        self.patched = False
        """The key was removed, or may have been: what comes after was not seen if this ends now."""
        self._client = client
        self._observer = observer
        self._clock = clock
        self._node = node
        self._name = name
        self._settings = settings
        self._report = report
        self._begun = clock.monotonic()
        self._before: dict[str, Before] = {}
        self._put_back_empty = 0
        self._stale: tuple[int | None, float] | None = None
        """The capacity for which we wait to go, and since when."""

    async def plan(self) -> tuple[ExtendedResource, Patch]:
        """What is there and how it would be removed, tried on the server without effect; raises why it cannot be."""
        look = await self._observer.node(self._node)
        found = self._checked(look)
        patch = patch_for(look.document(), {self._name: None})
        if patch:
            with suppress(Conflict):  # Changed this very moment: whoever goes on will look again.
                await self._client.patch(NODES, self._node, patch, subresource="status", dry_run=True)
        return found, patch

    async def run(self) -> None:
        """Remove it; returns once it has stayed away, and raises why it has not."""
        self._begun = self._clock.monotonic()
        while True:
            look = await self._look()
            if self._name in look.node.capacity or not self.patched:
                found = self._checked(look)
                if found.state in _KEPT and not self._settings.now:
                    await self._wait(found)
                    continue
                if found.state is not State.LEAVING and not await self._remove(look, found):
                    continue
            back = await self._came_back()
            if back is None:
                return
            self._report(PutBack(back))
            self._weigh(back)

    def _checked(self, look: Look) -> ExtendedResource:
        """The resource, if it may be removed now or once the kubelet lets go."""
        found, now = look.find(self._name), self._settings.now
        if found is None:
            raise UserError(
                f"node {self._node} has no extended resource {self._name!r}; "
                f"'colocate resource list --node {self._node}' shows what it has"
            )
        where = f"{self._name} on node {self._node}"
        if found.holders:
            raise Refused(
                f"{where} is held by {_pods(found)}; it stays until they are gone: delete them, or let them finish"
            )
        if found.state is State.ALIVE:
            raise Refused(
                f"{where} is advertised by a plugin that is alive ({found.reason}); stop the plugin, for instance by "
                f"deleting its DaemonSet or keeping it off this node, and try again"
            )
        if found.state is State.UNKNOWN and not now:
            raise Refused(
                f"{where}: {found.reason}; look again in a while, or try it with --now: if a plugin is alive, "
                f"it comes back"
            )
        if look.node.silent and found.state is not State.LEAVING and not now:
            raise Refused(
                f"the kubelet of node {self._node} is silent: nobody could see whether {self._name} stays away; "
                f"start the kubelet, or use --now to remove it all the same"
            )
        return found

    async def _wait(self, found: ExtendedResource) -> None:
        """The kubelet keeps it. For how long can be inferred; that it does so for ever shows only in the end."""
        now = self._clock.monotonic()
        if self._stale is None or self._stale[0] != found.capacity:
            self._stale = found.capacity, now
        waited = now - self._stale[1]
        if waited > PATIENCE:
            raise Refused(
                f"the kubelet of node {self._node} has kept {self._name} for longer than it keeps the devices of a "
                f"plugin that has gone: a plugin is alive that has no healthy device; stop it and try again"
            )
        if found.remaining is None:
            found = msgspec.structs.replace(found, remaining=max(0.0, GRACE - waited))
        self._report(Waiting(found, self._elapsed()))
        await self._pause()

    async def _look(self) -> Look:
        while True:
            try:
                look = await self._observer.node(self._node, self._before)
            except (Unavailable, ServerError) as error:
                self._report(Trouble(str(error)))
                await self._pause()
                continue
            put_back = self._before.get(self._name, Before()).put_back
            self._before = remember(look.resources)
            if put_back is not None:
                known = self._before.get(self._name, Before())
                self._before[self._name] = msgspec.structs.replace(known, put_back=put_back)
            return look

    async def _remove(self, look: Look, found: ExtendedResource) -> bool:
        """Whether it was done; where not, for a reason that may pass, look again."""
        patch = patch_for(look.document(), {self._name: None})
        self._report(Patching(patch, early=found.state in _KEPT))
        try:
            await self._client.patch(NODES, self._node, patch, subresource="status")
        except Conflict:
            self._report(Changed())
            await self._pause(STAYS_AWAY)  # The next sync shows whose it is now.
            return False
        except (Unavailable, ServerError) as error:
            self.patched = True  # Perhaps: the next look shows it.
            self._report(Trouble(str(error)))
            await self._pause()
            return False
        self.patched = True
        return True

    async def _came_back(self) -> ExtendedResource | None:
        """Watch one sync: the resource if it is put back, None if it stays away.

        That the kubelet drops allocatable as well shows that it has synced since.
        """
        begun = self._clock.monotonic()
        while True:
            watched = self._clock.monotonic() - begun
            self._report(Watching(watched))
            await self._pause()
            look = await self._look()
            found = look.find(self._name)
            if found is not None and self._name in look.node.capacity:
                return found
            watched = self._clock.monotonic() - begun
            if found is None and watched >= STAYS_AWAY:
                return None
            if watched >= UNCONFIRMED:
                raise NotRemoved(
                    f"{self._name} is out of the capacity of node {self._node}, but its kubelet has not synced "
                    f"within {watched:.0f} s and may put it back when it does; see whether it runs, and look with "
                    f"'colocate resource list --node {self._node}'"
                )

    def _weigh(self, back: ExtendedResource) -> None:
        """It was put back. Raises unless waiting longer helps."""
        where = f"{self._name} on node {self._node}"
        if back.state is State.ALIVE:
            return  # The next look refuses, and says so.
        if back.state is State.HAND_PATCHED:
            raise NotRemoved(f"{where} was written again ({back.reason}); find out who advertises it")
        if self._settings.now:
            raise NotRemoved(
                f"the kubelet put {where} back, at {back.capacity}: it has not let go of the plugin yet, which takes "
                f"five minutes from when the plugin stopped or the kubelet started; run this again without --now, "
                f"and it waits for that"
            )
        if back.capacity == 0:
            self._put_back_empty += 1
            if self._put_back_empty > 1:
                raise NotRemoved(
                    f"the kubelet put {where} back twice, five minutes apart: a plugin that has no devices is alive; "
                    f"stop it and try again"
                )
            self._before[self._name] = Before(put_back=self._clock.time())
            self._stale = None

    async def _pause(self, seconds: float = POLL) -> None:
        """Until the next look; raises when the time is up."""
        left = self._settings.timeout - self._elapsed()
        if left > 0:
            await self._clock.sleep(min(seconds, left))
            return
        if self.patched:
            told = "it was removed, but whether it stays away has not been seen"
        else:
            told = "nothing was changed, for the kubelet had not let go of it"
        raise NotRemoved(
            f"{self._settings.timeout:g} s were not enough to remove {self._name} from node {self._node}: {told}; "
            f"give it longer with --timeout"
        )

    def _elapsed(self) -> float:
        return self._clock.monotonic() - self._begun


def _pods(found: ExtendedResource) -> str:
    named = [f"{holder.pod} ({holder.count})" for holder in found.holders[:_PODS_NAMED]]
    more = len(found.holders) - len(named)
    return ", ".join(named) + (f" and {more} more pods" if more else "")
