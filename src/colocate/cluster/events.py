"""Records events about objects of the cluster, as `kubectl describe` shows them: counted together, and limited.

Equal messages about one object are one event with a count. Recording neither waits nor fails: events that cannot be
sent are dropped and counted. Callers decide what is worth an event.
"""

import math
from collections import OrderedDict
from datetime import UTC, datetime
from enum import StrEnum

import msgspec

from colocate import telemetry
from colocate.aio import Watched
from colocate.backoff import BackOff
from colocate.cluster.client import Client
from colocate.cluster.errors import (
    ApiError,
    ClusterError,
    NotFound,
    ServerError,
    TooManyRequests,
    Unreachable,
)
from colocate.cluster.resources import EVENTS, Object
from colocate.errors import UserError
from colocate.telemetry import CLUSTER_EVENTS, Event

_LONGEST_MESSAGE = 1024
"""Bytes; the API's limit."""


class EventType(StrEnum):
    NORMAL = "Normal"
    WARNING = "Warning"


class Reference(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The object that an event is about."""

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    api_version: str = "v1"
    resource_version: str = ""

    @property
    def home(self) -> str:
        """The namespace of the event; events about nodes, which have none, are in `default`."""
        return self.namespace or "default"


class EventSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of events; the defaults are those of Kubernetes' own components."""

    burst: int = 25
    """How many events about one object may be sent at once."""
    every: float = 300.0
    """Seconds until an object that has used up its burst may have another event."""
    waiting: int = 1000
    """How many different events may wait to be sent."""
    remembered: int = 4096
    """How many events and objects are kept in memory to count repetitions."""
    attempts: int = 5
    first_pause: float = 1.0
    last_pause: float = 30.0
    """The longest pause, in seconds, between attempts to send an event to a server that does not answer."""


class _Same(msgspec.Struct, frozen=True):
    """The fields in which two events must agree to be counted as one."""

    about: Reference
    type: EventType
    reason: str
    message: str


class _Waiting(msgspec.Struct):
    count: int
    first: float
    last: float


class _Sent(msgspec.Struct):
    name: str
    count: int


class _Bucket(msgspec.Struct):
    left: float
    filled: float


class EventRecorder:
    """Records events as one component, and sends them from `run`."""

    def __init__(
        self, client: Client, component: str, host: str = "", settings: EventSettings | None = None
    ) -> None:
        self._client = client
        self._clock = client.clock
        self._component = component
        self._host = host
        self._settings = settings or EventSettings()
        self._waiting: OrderedDict[_Same, _Waiting] = OrderedDict()
        self._sent: OrderedDict[_Same, _Sent] = OrderedDict()
        self._buckets: OrderedDict[Reference, _Bucket] = OrderedDict()
        self._recorded = Watched()
        self._log = telemetry.logger()
        self._last_stamp = 0
        self.dropped = 0
        """How many events were dropped."""

    def record(self, about: Reference, reason: str, message: str, type: EventType = EventType.NORMAL) -> None:
        """Record an event about an object. Returns at once and never raises."""
        same = _Same(msgspec.structs.replace(about, resource_version=""), type, reason, _short(message))
        now = self._clock.time()
        if (waiting := self._waiting.get(same)) is not None:
            waiting.count += 1
            waiting.last = now
            return
        if not self._may(same.about):
            self._drop("limited", same)
        elif len(self._waiting) >= self._settings.waiting:
            self._drop("overflow", same)
        else:
            self._waiting[same] = _Waiting(1, now, now)
            self._recorded.changed()

    async def run(self) -> None:
        """Send recorded events until cancelled."""
        seen = 0
        while True:
            seen = await self._recorded.beyond(seen)
            await self.flush()

    async def flush(self) -> None:
        """Send all waiting events now."""
        while self._waiting:
            same, waiting = self._waiting.popitem(last=False)
            await self._deliver(same, waiting)

    async def _deliver(self, same: _Same, waiting: _Waiting) -> None:
        settings = self._settings
        back_off = BackOff(settings.first_pause, settings.last_pause, self._client.random)
        for attempt in range(1, settings.attempts + 1):
            try:
                CLUSTER_EVENTS.labels(await self._send(same, waiting)).inc()
                return
            except (Unreachable, ServerError, TooManyRequests) as error:
                if attempt == settings.attempts:
                    self._drop("unreachable", same, error)
                    return
                await self._clock.sleep(back_off.pause(getattr(error, "retry_after", None)))
            except (ApiError, UserError) as error:
                self._drop("refused", same, error)
                return

    async def _send(self, same: _Same, waiting: _Waiting) -> str:
        sent = self._sent.get(same)
        home = same.about.home
        if sent is not None:
            count = sent.count + waiting.count
            patch = {"count": count, "lastTimestamp": _time(waiting.last), "message": same.message}
            try:
                await self._client.patch(EVENTS, sent.name, patch, home)
            except NotFound:
                del self._sent[same]  # The server deletes events after an hour.
            else:
                sent.count = count
                self._sent.move_to_end(same)
                return "counted"
        name = f"{same.about.name}.{self._stamp(waiting.first):x}"
        await self._client.create(EVENTS, self._body(name, same, waiting), home)
        self._sent[same] = _Sent(name, waiting.count)
        while len(self._sent) > self._settings.remembered:
            self._sent.popitem(last=False)
        return "created"

    def _stamp(self, seconds: float) -> int:
        """The time in nanoseconds, made unique: an event's name ends with it."""
        self._last_stamp = max(self._last_stamp + 1, int(seconds * 1e9))
        return self._last_stamp

    def _body(self, name: str, same: _Same, waiting: _Waiting) -> Object:
        source = {"component": self._component} | ({"host": self._host} if self._host else {})
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": same.about.home},
            "involvedObject": {"apiVersion": same.about.api_version} | msgspec.to_builtins(same.about),
            "reason": same.reason,
            "message": same.message,
            "source": source,
            "firstTimestamp": _time(waiting.first),
            "lastTimestamp": _time(waiting.last),
            "count": waiting.count,
            "type": same.type.value,
            "eventTime": None,
            "reportingComponent": self._component,
            "reportingInstance": self._host,
        }

    def _may(self, about: Reference) -> bool:
        settings, now = self._settings, self._clock.monotonic()
        bucket = self._buckets.pop(about, None) or _Bucket(float(settings.burst), now)
        bucket.left = min(settings.burst, bucket.left + (now - bucket.filled) / settings.every)
        bucket.filled = now
        self._buckets[about] = bucket
        if len(self._buckets) > settings.remembered:
            self._buckets.popitem(last=False)
        if bucket.left < 1:
            return False
        bucket.left -= 1
        return True

    def _drop(self, why: str, same: _Same, error: ClusterError | UserError | None = None) -> None:
        self.dropped += 1
        CLUSTER_EVENTS.labels(f"dropped: {why}").inc()
        self._log.warning(
            Event.CLUSTER_EVENT_DROPPED,
            why=why,
            object=f"{same.about.kind} {same.about.home}/{same.about.name}",
            reason=same.reason,
            error=str(error) if error else "",
        )


def _short(message: str) -> str:
    """The message, cut to the API's limit in bytes."""
    data = message.encode("utf-8", "replace")
    if len(data) <= _LONGEST_MESSAGE:
        return data.decode()
    return data[: _LONGEST_MESSAGE - 3].decode("utf-8", "ignore") + "…"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(math.floor(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
