"""Lets one of several processes act at a time: takes, renews and releases a Lease.

Clocks of machines differ, so whether another's lease has expired is judged by our own clock, from when we last saw
it change. Our own lease counts from before the request, and ends a third of its duration early: a holder that
cannot renew stops before another may begin. A process that ends leaves the lease to another holder or candidate,
and takes it only if there is none.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

import msgspec

from colocate import telemetry
from colocate.aio import Watched, deadline
from colocate.backoff import Random
from colocate.clock import Clock
from colocate.cluster.client import Client
from colocate.cluster.errors import ClusterError, Conflict, Forbidden, NotFound, Unauthorized
from colocate.cluster.resources import LEASES, Object
from colocate.errors import UserError
from colocate.telemetry import LEASE_HELD, Event

_LOOK = 1.0
"""The longest time between two looks of a waiting process, in seconds."""
_OFFERED = 3
"""How many such times an ending process leaves a free lease to others: a waiting process looks at least twice."""
_WATCHED = 20.0
"""The longest time for which a lease is watched for a renewal, in seconds."""


class LeaseSettings(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    identity: str
    duration: float = 15.0
    """Seconds without a renewal after which the holder counts as gone."""


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Lease(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()


async def held_by(client: Client, namespace: str, name: str, clock: Clock) -> str:
    """The holder of a lease; empty where it has none. A lease that is not fresh by our clock is watched until it is
    renewed or its holder must have stopped, because clocks of machines differ."""
    lease = LEASES.read_as(_Lease)
    begun = clock.monotonic()
    try:
        spec = first = (await client.get(lease, name, namespace)).spec
        lasts = first.lease_duration_seconds or 0
        if abs(clock.time() - _renewed(first)) <= lasts:
            return first.holder_identity or ""
        watched = min(lasts * 2 / 3, _WATCHED)
        while spec.holder_identity and spec == first and clock.monotonic() < begun + watched:
            await clock.sleep(_LOOK)
            spec = (await client.get(lease, name, namespace)).spec
    except NotFound:
        return ""
    return (spec.holder_identity or "") if spec != first else ""


def _renewed(spec: _Spec) -> float:
    try:
        return datetime.fromisoformat(spec.renew_time or "").timestamp()
    except ValueError:
        return float("-inf")


class LeaseHolder:
    """Holds a lease, or waits for it. Check `held` before every action that only the holder may take."""

    def __init__(
        self, client: Client, settings: LeaseSettings, clock: Clock, random: Random = random.random
    ) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self._random = random
        self._name = f"{settings.namespace}/{settings.name}"
        self._resource = LEASES.read_as(_Lease)
        self._pause = settings.duration / 5
        self._look = min(_LOOK, self._pause)
        self._passing = asyncio.Lock()
        self._leaving = False
        self._until = float("-inf")
        self._away_until = float("-inf")
        self._seen: _Spec | None = None
        self._seen_at = 0.0
        self._was_held = False
        self._refused = False
        self.ever_held = False
        self.another = ""
        """The other process that was last seen to take or renew it; empty where there is none."""
        self.error = ""
        """Why the last attempt to read or write it failed; empty where it did not."""
        self.changed = Watched()

    @property
    def held(self) -> bool:
        return self._away_until <= self._clock.monotonic() < self._until

    def stand_back(self, seconds: float) -> None:
        """Release the lease and leave it to others for `seconds`: for a holder that cannot do its work."""
        self._away_until = self._clock.monotonic() + seconds
        self._until = float("-inf")
        self._tell()

    async def leave(self, seconds: float) -> bool:
        """Call this before the end of the process; it takes at most `seconds`. Leave the lease to a process that is
        seen to renew or take it (`another`), or take it ourselves once it was free for a while. Returns whether we
        hold it; if not, we take it no more. If we were refused or never held it, do not wait for a failing
        server."""
        with suppress(TimeoutError):
            # A pass that is under way may still take it.
            async with deadline(self._clock, seconds), self._passing:
                self._leaving = True
                self.another = ""
                self.stand_back(float("inf"))
                free_for, was_free, looked = 0.0, False, 0.0
                while True:
                    free = await self._pass()
                    if self.held or self.another or (self.error and not self._worth_waiting()):
                        break
                    # If we stall, others may stall too: they need time for one look between two of ours.
                    passed = min(self._clock.monotonic() - looked, self._look)
                    free_for = free_for + passed if free and was_free else 0.0
                    was_free, looked = free, self._clock.monotonic()
                    self._away_until = float("-inf" if free_for >= _OFFERED * self._look else "inf")
                    await self._clock.sleep(self._look / 4)
        return self.held

    @asynccontextmanager
    async def running(self) -> AsyncIterator["LeaseHolder"]:
        """Take the lease when it is free and renew it while the body runs; then release it."""
        task = asyncio.create_task(self._run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if self.held:
                self.stand_back(self._settings.duration)
                await self._pass()
            self.stand_back(0)

    async def _run(self) -> None:
        while True:
            async with self._passing:
                if self.held or not self._leaving:
                    await self._pass()
            pause = self._pause if self.held else self._look
            await self._clock.sleep(pause * (1 + 0.2 * self._random()))

    async def _pass(self) -> bool:
        """Try to take it, or release it while it is left to others. Returns whether it was free, or is ours."""
        error, free, refused = "", False, False
        try:
            async with deadline(self._clock, self._settings.duration / 3):
                if self._clock.monotonic() < self._away_until:
                    self._until = float("-inf")
                    free = await self._give_back()
                else:
                    free = await self._try()
        except TimeoutError:
            error = "the API server does not answer in time"
        except (ClusterError, UserError) as failed:
            error, refused = str(failed), isinstance(failed, Forbidden | Unauthorized)
        except Exception as failed:  # noqa: BLE001 -- whatever it is, the lease must be asked for again
            error = f"{type(failed).__name__}: {failed}"
        if error and error != self.error:
            telemetry.logger().warning(Event.LEASE_FAILED, lease=self._name, error=error)
        self.error, self._refused = error, refused
        self._tell()
        return free

    def _worth_waiting(self) -> bool:
        return self.ever_held and not self._refused

    async def _try(self) -> bool:
        asked = self._clock.monotonic()
        settings = self._settings
        try:
            found = await self._found()
        except NotFound:
            with suppress(Conflict):
                await self._client.create(LEASES, self._body("", self._ours(None)), settings.namespace)
                self._until = asked + settings.duration * 2 / 3
            return True
        if found.spec.holder_identity != settings.identity and not self._free(found.spec):
            self._until = float("-inf")
            return False
        if found.spec.holder_identity != settings.identity:
            # Another may have held and released it while we stalled: notify those that wait for a change.
            self._until = float("-inf")
            self._tell()
        try:
            body = self._body(found.metadata.resource_version, self._ours(found.spec))
            await self._client.replace(LEASES, settings.name, body, settings.namespace)
        except Conflict:
            # Another process was faster, and may hold it now.
            self._until = float("-inf")
            await self._found()
            return False
        self._until = asked + settings.duration * 2 / 3
        return True

    async def _give_back(self) -> bool:
        """Release it, so that others need not wait for its expiry. Returns whether it is free now."""
        settings = self._settings
        try:
            found = await self._found()
            if found.spec.holder_identity != settings.identity:
                return self._free(found.spec)
            free = msgspec.structs.replace(found.spec, holder_identity="", lease_duration_seconds=1)
            body = self._body(found.metadata.resource_version, free)
            await self._client.replace(LEASES, settings.name, body, settings.namespace)
        except NotFound:
            return True
        except Conflict:
            return False
        return True

    async def _found(self) -> _Lease:
        asked = self._clock.monotonic()
        found = await self._client.get(self._resource, self._settings.name, self._settings.namespace)
        if found.spec != self._seen:
            holder = found.spec.holder_identity or ""
            # The holder at our first look may be dead.
            self.another = holder if self._seen is not None and holder != self._settings.identity else ""
            self._seen, self._seen_at = found.spec, asked
        return found

    def _free(self, spec: _Spec) -> bool:
        lasts = spec.lease_duration_seconds or self._settings.duration
        return not spec.holder_identity or self._clock.monotonic() >= self._seen_at + lasts

    def _ours(self, before: _Spec | None) -> _Spec:
        now = datetime.fromtimestamp(self._clock.time(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        settings = self._settings
        renews = before is not None and before.holder_identity == settings.identity
        transitions = (before.lease_transitions or 0) if before is not None else 0
        return _Spec(
            settings.identity,
            max(1, round(settings.duration)),
            before.acquire_time if before is not None and renews else now,
            now,
            transitions if renews or before is None else transitions + 1,
        )

    def _body(self, version: str, spec: _Spec) -> Object:
        metadata: Object = {"name": self._settings.name, "namespace": self._settings.namespace}
        if version:
            metadata["resourceVersion"] = version
        said = {name: value for name, value in msgspec.to_builtins(spec).items() if value is not None}
        return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": said}

    def _tell(self) -> None:
        held = self.held
        LEASE_HELD.set(held)
        if held != self._was_held:
            event = Event.LEASE_TAKEN if held else Event.LEASE_LOST
            telemetry.logger().info(event, lease=self._name)
            self._was_held = held
            self.ever_held = True
            self.changed.changed()
