"""The state of a watch cache, for readiness checks, people and metrics."""

import msgspec

from colocate import telemetry
from colocate.clock import Clock
from colocate.telemetry import (
    WATCH_CONTACT,
    WATCH_ERRORS,
    WATCH_LISTS,
    WATCH_OBJECTS,
    WATCH_SKIPPED,
    Event,
)


class WatchHealth(msgspec.Struct, frozen=True):
    """The state at one moment."""

    synced: bool
    """Whether a whole list has been read since the start."""
    objects: int
    skipped: int
    """Objects whose current state could not be read."""
    last_contact: float | None
    """When the server last sent anything, in seconds since the epoch; None if never."""
    relists: int
    """How many lists were read after the first."""
    errors: int
    last_error: str
    """The last error; empty as soon as the server answers again."""


class WatchRecord:
    """Counts the events of one cache, here and in the metrics."""

    def __init__(self, resource: str, clock: Clock) -> None:
        self._resource = resource
        self._clock = clock
        self._log = telemetry.logger(resource=resource)
        self.synced = False
        self.last_contact: float | None = None
        self.relists = 0
        self.errors = 0
        self.last_error = ""

    def contact(self) -> None:
        """Note that the server sent something."""
        self.last_contact = self._clock.time()
        self.last_error = ""
        WATCH_CONTACT.labels(self._resource).set(self.last_contact)

    def listed(self, reason: str, objects: int) -> None:
        if self.synced:
            self.relists += 1
        self.synced = True
        WATCH_LISTS.labels(self._resource, reason).inc()
        WATCH_OBJECTS.labels(self._resource).set(objects)
        self._log.info(Event.WATCH_LISTED, reason=reason, objects=objects)

    def held(self, objects: int) -> None:
        WATCH_OBJECTS.labels(self._resource).set(objects)

    def skipped(self, key: str, why: str) -> None:
        WATCH_SKIPPED.labels(self._resource).inc()
        self._log.warning(Event.WATCH_SKIPPED, object=key, why=why)

    def failed(self, error: Exception, pause: float) -> None:
        self.errors += 1
        self.last_error = str(error)
        WATCH_ERRORS.labels(self._resource, type(error).__name__).inc()
        self._log.warning(Event.WATCH_FAILED, error=str(error), pause=round(pause, 3))

    def handler_failed(self, key: str) -> None:
        WATCH_ERRORS.labels(self._resource, "Handler").inc()
        self._log.exception(Event.WATCH_HANDLER_FAILED, object=key)
