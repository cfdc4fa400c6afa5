"""Remove an extended resource from a node for good: wait until the kubelet forgets it, remove the key, watch that it
stays away.

Refuses while a pod holds the resource and while a plugin advertises it. The patch tests the number that was seen, so
that one of two writers is refused. Each step is reported as data to the caller. It can be stopped at any moment:
there is one write, which the server does completely or not at all. It stops when its time is up, even during a
request to the server, and writes nothing after that.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import StrEnum

import msgspec

from colocate.aio import deadline
from colocate.clock import Clock
from colocate.cluster.client import Client
from colocate.cluster.errors import ApiError, Conflict, ServerError, Unreachable
from colocate.cluster.json_patch import Patch
from colocate.cluster.node_status import patch_for
from colocate.cluster.resources import NODES
from colocate.devices.extended_resources import (
    GRACE,
    LATE,
    SYNC,
    Before,
    ExtendedResource,
    ResourceState,
    remember,
)
from colocate.devices.resources.observe import NoNode, ResourceLook, ResourceObserver
from colocate.devices.resources.refusal import RemovalRefused, removable
from colocate.devices.resources.steps import (
    POLL,
    STAYS_AWAY,
    Changed,
    Patching,
    PutBack,
    Report,
    Trouble,
    WaitingStep,
    Watching,
)
from colocate.errors import ColocateError, Unavailable

UNCONFIRMED = 6 * SYNC
"""Seconds after which a kubelet that has not dropped allocatable is not syncing."""
PATIENCE = GRACE + 2 * LATE
"""Seconds after which a kubelet that has not forgotten the resource never will: a plugin is alive."""


class NotRemoved(ColocateError):
    """The removal was tried, and the resource is there, or may be."""


class RemovalSettings(msgspec.Struct, frozen=True):
    """Settings of a removal."""

    timeout: float = 900.0
    """Seconds for the whole removal."""
    now: bool = False
    """Do not wait until the kubelet forgets the resource."""


class Done(StrEnum):
    """What is known about the one write."""

    NOTHING = "nothing was changed"
    PERHAPS = "the server was asked to remove it, but has not answered"
    REMOVED = "it was removed"
    PUT_BACK = "it was removed, but put back"


_KEPT = (ResourceState.STALE, ResourceState.UNHEALTHY)
"""States in which the kubelet would put it back, and may forget it later."""


class Removal:
    """The removal of one resource from one node."""

    def __init__(
        self,
        client: Client,
        observer: ResourceObserver,
        clock: Clock,
        node: str,
        name: str,
        settings: RemovalSettings,
        report: Report,
        spent: float = 0.0,
    ) -> None:
        """`spent`: seconds that the planning has already used."""
        self.done = Done.NOTHING
        self._client = client
        self._observer = observer
        self._clock = clock
        self._node = node
        self._name = name
        self._settings = settings
        self._report = report
        self._begun = clock.monotonic() - spent
        self._open = "the API server has not answered"
        """Why it has not ended yet."""
        self._seen = False
        """Whether the first look found it."""
        self._before: dict[str, Before] = {}
        self._put_back_empty = 0
        self._stale: tuple[int | None, float] | None = None
        """The capacity that should go, and since when we wait."""

    @property
    def spent(self) -> float:
        """Seconds since it began."""
        return self._clock.monotonic() - self._begun

    @property
    def so_far(self) -> str:
        """What is known if it ends now."""
        return f"{self.done} ({self._open})"

    async def plan(self) -> tuple[ExtendedResource, Patch]:
        """The resource and the patch, checked by a dry run on the server; raises the reason if it is refused."""
        async with self._in_time():
            look = await self._observer.node(self._node)
            found = removable(look, self._name, now=self._settings.now)
            patch = patch_for(look.document(), {self._name: None})
            if patch:
                with suppress(Conflict):  # Changed at this moment: `run` looks again.
                    await self._client.patch(NODES, self._node, patch, subresource="status", dry_run=True)
            return found, patch

    async def run(self) -> None:
        """Remove it; returns once it has stayed away, or raises the reason."""
        async with self._in_time():
            try:
                await self._run()
            except NoNode:
                if not self._seen:
                    raise
                raise NotRemoved(f"node {self._node} was deleted in the meantime: {self.so_far}") from None
            except ApiError as error:
                if self.done is Done.NOTHING:
                    raise
                raise NotRemoved(f"{error}; until then: {self.so_far}") from error

    async def _run(self) -> None:
        while True:
            look = await self._look()
            if self._name in look.node.capacity or not self._seen:
                found = removable(look, self._name, now=self._settings.now)
                self._seen = True
                if found.state in _KEPT and not self._settings.now:
                    await self._wait(found)
                    continue
                if found.state is not ResourceState.LEAVING and not await self._remove(look, found):
                    continue
            back = await self._came_back()
            if back is None:
                return
            if self.done is not Done.NOTHING:
                self.done = Done.PUT_BACK
            self._report(PutBack(back))
            self._weigh(back)

    async def _wait(self, found: ExtendedResource) -> None:
        """Wait for the kubelet; raise if it keeps the resource longer than any grace."""
        now = self._clock.monotonic()
        if self._stale is None or self._stale[0] != found.capacity:
            self._stale = found.capacity, now
        waited = now - self._stale[1]
        if waited > PATIENCE:
            raise RemovalRefused(
                f"the kubelet of node {self._node} has kept {self._name} for longer than it keeps devices of a "
                "stopped plugin: a plugin without healthy devices is running; stop it and try again"
            )
        if found.remaining is None:
            found = msgspec.structs.replace(found, remaining=max(0.0, GRACE - waited))
        self._open = "the kubelet has not forgotten it"
        self._report(WaitingStep(found, self.spent))
        await self._clock.sleep(POLL)

    async def _look(self) -> ResourceLook:
        while True:
            try:
                look = await self._observer.node(self._node, self._before)
            except (Unavailable, ServerError) as error:
                await self._trouble(error)
                continue
            if self.done is Done.PERHAPS and self._name not in look.node.capacity:
                self.done = Done.REMOVED
            put_back = self._before.get(self._name, Before()).put_back
            self._before = remember(look.resources)
            if put_back is not None:
                known = self._before.get(self._name, Before())
                self._before[self._name] = msgspec.structs.replace(known, put_back=put_back)
            return look

    async def _remove(self, look: ResourceLook, found: ExtendedResource) -> bool:
        """Whether it was removed; False for a temporary reason: look again."""
        patch = patch_for(look.document(), {self._name: None})
        self._report(Patching(patch, early=found.state in _KEPT))
        if self.spent >= self._settings.timeout:
            raise TimeoutError  # A process that was stopped for long may get here before the deadline fires.
        before, self.done = self.done, Done.PERHAPS
        try:
            await self._client.patch(NODES, self._node, patch, subresource="status")
        except (Unavailable, ServerError) as error:
            if isinstance(error, Unreachable) and not error.sent:
                self.done = before
            await self._trouble(error)  # The next look shows whether it was done.
            return False
        except Conflict:
            self.done = before
            self._open = "something else keeps changing it"
            self._report(Changed())
            await self._clock.sleep(STAYS_AWAY)  # The next sync shows who provides it now.
            return False
        except ApiError:
            self.done = before
            raise
        self.done = Done.REMOVED
        return True

    async def _trouble(self, error: Exception) -> None:
        self._open = str(error)
        self._report(Trouble(self._open))
        await self._clock.sleep(POLL)

    async def _came_back(self) -> ExtendedResource | None:
        """Watch one sync: the resource if it is put back, None if it stays away.

        The kubelet has synced once it has dropped allocatable too.
        """
        begun = self._clock.monotonic()
        while True:
            watched = self._clock.monotonic() - begun
            self._open = "it is not known whether it stays away"
            self._report(Watching(watched))
            await self._clock.sleep(POLL)
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
                    f"within {watched:.0f} s and may put it back when it does; check that it runs, and look "
                    f"with 'colocate resource list --node {self._node}'"
                )

    def _weigh(self, back: ExtendedResource) -> None:
        """Decide after it was put back: raises unless waiting longer helps."""
        where = f"{self._name} on node {self._node}"
        if back.state is ResourceState.ALIVE:
            return  # The next look refuses it, with the reason.
        if back.state is ResourceState.HAND_PATCHED:
            raise NotRemoved(f"{where} was written again ({back.reason}); find out what advertises it")
        if self._settings.now:
            raise NotRemoved(
                f"the kubelet put {where} back, at {back.capacity}: it forgets a plugin only five minutes "
                "after the plugin stopped or the kubelet started; run this again without --now to wait for "
                "that"
            )
        if back.capacity == 0:
            self._put_back_empty += 1
            if self._put_back_empty > 1:
                raise NotRemoved(
                    f"the kubelet put {where} back twice, five minutes apart: a plugin without devices is "
                    "running; stop it and try again"
                )
            self._before[self._name] = Before(put_back=self._clock.time())
            self._stale = None

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        """Raise NotRemoved when the time is up, with what is known by then."""
        try:
            async with deadline(self._clock, self._settings.timeout - self.spent):
                yield
        except TimeoutError:
            raise NotRemoved(
                f"could not remove {self._name} from node {self._node} within {self._settings.timeout:g} s: "
                f"{self.so_far}; give it more time with --timeout"
            ) from None
