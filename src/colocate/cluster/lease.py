"""One of several processes at a time: a Lease that is taken, renewed, and given back.

Whether another's lease has run out is judged by our own clock, from the moment at which we saw it change last:
clocks of machines differ. Our own counts from before it was asked for, and ends a third of its time early; a
holder that cannot renew therefore stops before another may begin.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

import msgspec

from colocate import telemetry
from colocate.aio import Watched, deadline
from colocate.clock import Clock
from colocate.cluster.backoff import Random
from colocate.cluster.client import Client
from colocate.cluster.errors import ClusterError, Conflict, NotFound
from colocate.cluster.resources import LEASES, Object
from colocate.errors import UserError
from colocate.telemetry import LEASE_HELD, Event


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
        self._until = float("-inf")
        self._away_until = float("-inf")
        self._seen: _Spec | None = None
        self._seen_at = 0.0
        self._was_held = False
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
                await self._give_back()
            self._until = float("-inf")
            self._tell()

    async def _run(self) -> None:
        pause = self._settings.duration / 5
        while True:
            before, self.error = self.error, ""
            try:
                if self._clock.monotonic() < self._away_until:
                    await self._give_back()
                    self._until = float("-inf")
                else:
                    async with deadline(self._clock, self._settings.duration / 3):
                        await self._try()
            except TimeoutError:
                self.error = "the API server does not answer in time"
            except (ClusterError, UserError) as error:
                self.error = str(error)
            except Exception as error:  # noqa: BLE001 -- whatever it is, the lease must be asked for again
                self.error = f"{type(error).__name__}: {error}"
            if self.error and self.error != before:
                telemetry.logger().warning(Event.LEASE_FAILED, lease=self._name, error=self.error)
            self._tell()
            await self._clock.sleep(pause * (1 + 0.2 * self._random()))

    async def _try(self) -> None:
        asked = self._clock.monotonic()
        settings = self._settings
        try:
            found = await self._client.get(self._resource, settings.name, settings.namespace)
        except NotFound:
            with suppress(Conflict):
                await self._client.create(LEASES, self._body("", self._ours(None)), settings.namespace)
                self._until = asked + settings.duration * 2 / 3
            return
        spec = found.spec
        if spec != self._seen:
            self._seen, self._seen_at = spec, asked
        free = not spec.holder_identity or asked >= self._seen_at + (
            spec.lease_duration_seconds or settings.duration
        )
        if spec.holder_identity != settings.identity and not free:
            self._until = float("-inf")
            return
        try:
            body = self._body(found.metadata.resource_version, self._ours(spec))
            await self._client.replace(LEASES, settings.name, body, settings.namespace)
        except Conflict:
            # Another was quicker, and may hold it now.
            self._until = float("-inf")
            return
        self._until = asked + settings.duration * 2 / 3

    async def _give_back(self) -> None:
        """So that nobody need wait for it to run out."""
        settings = self._settings
        with suppress(ClusterError, UserError, TimeoutError):
            async with deadline(self._clock, settings.duration / 3):
                found = await self._client.get(self._resource, settings.name, settings.namespace)
                if found.spec.holder_identity == settings.identity:
                    free = msgspec.structs.replace(found.spec, holder_identity="", lease_duration_seconds=1)
                    body = self._body(found.metadata.resource_version, free)
                    await self._client.replace(LEASES, settings.name, body, settings.namespace)

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
            self.changed.changed()
