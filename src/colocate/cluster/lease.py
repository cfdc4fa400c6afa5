"""One of several processes at a time: a Lease that is taken, renewed, and given back.

Whether another's lease has run out is judged by our own clock, from the moment at which we saw it change last:
clocks of machines differ. Our own counts from before it was asked for, and ends a third of its time early; a
holder that cannot renew therefore stops before another may begin. Who ends leaves it to whoever has it or waits for
it, and takes it where nobody does.
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
"""Seconds after which those who wait for it look again, at most."""
_OFFERED = 3
"""Times as long for which it is left to them by who ends, once it is free: one that waits looks at least twice."""
_WATCHED = 20.0
"""Seconds for which a lease is watched for a renewal, at most."""


class LeaseSettings(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    identity: str
    duration: float = 15.0
    """Seconds without a renewal after which the holder is taken for gone."""


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
    """Who holds a lease, for whoever does not follow it; empty where nobody does. As clocks of machines differ, one
    that was not renewed just now by ours is watched, until it is renewed or its holder must have stopped."""
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
    """Holds a lease, or waits to. `held` is asked before everything that only its holder may do."""

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
        """Who else took or renewed it, as far as was seen, when it changed last; empty where nobody did."""
        self.error = ""
        """Why it could not be asked for, the last time."""
        self.changed = Watched()

    @property
    def held(self) -> bool:
        return self._away_until <= self._clock.monotonic() < self._until

    def stand_back(self, seconds: float) -> None:
        """Hold it no more, from now on, and leave it to others for so long: to be said by a holder that holds it
        in vain."""
        self._away_until = self._clock.monotonic() + seconds
        self._until = float("-inf")
        self._tell()

    async def leave(self, seconds: float) -> bool:
        """Before the end, and for so long at most: leave it to whoever is seen to renew it or to take it, who is
        `another` then, and take it once it was free for a while and nobody did. Whether it is held; if not, it is
        taken no more. Who is refused it, or never held it, does not wait for a server that fails."""
        with suppress(TimeoutError):
            # A look that is under way may still take it.
            async with deadline(self._clock, seconds), self._passing:
                self._leaving = True
                self.another = ""
                self.stand_back(float("inf"))
                free_for, was_free, looked = 0.0, False, 0.0
                while True:
                    free = await self._pass()
                    if self.held or self.another or (self.error and not self._worth_waiting()):
                        break
                    # While we stall, others may too: between two of our looks they have time for one of theirs.
                    passed = min(self._clock.monotonic() - looked, self._look)
                    free_for = free_for + passed if free and was_free else 0.0
                    was_free, looked = free, self._clock.monotonic()
                    self._away_until = float("-inf" if free_for >= _OFFERED * self._look else "inf")
                    await self._clock.sleep(self._look / 4)
        return self.held

    @asynccontextmanager
    async def running(self) -> AsyncIterator["LeaseHolder"]:
        """Take it when it can be had and renew it, for as long as the body runs; then give it back."""
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
        """Ask for it, or give it back while it is left to others; whether it was seen to be free, or is ours."""
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
            # Another may have had it and given it back while we stood still: whoever waits for a change must hear it.
            self._until = float("-inf")
            self._tell()
        try:
            body = self._body(found.metadata.resource_version, self._ours(found.spec))
            await self._client.replace(LEASES, settings.name, body, settings.namespace)
        except Conflict:
            # Another was quicker, and may hold it now.
            self._until = float("-inf")
            await self._found()
            return False
        self._until = asked + settings.duration * 2 / 3
        return True

    async def _give_back(self) -> bool:
        """So that nobody need wait for it to run out. Whether anybody may take it now."""
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
            # Whose it is when it is seen for the first time may be dead.
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
