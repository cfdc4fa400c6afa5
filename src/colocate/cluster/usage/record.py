"""How the queries are doing, for the doctor, for logs and as metrics."""

from collections.abc import Mapping

import msgspec

from colocate import telemetry
from colocate.clock import Clock
from colocate.cluster.errors import ApiError, ClusterError, Unreachable
from colocate.cluster.usage.answers import Vector
from colocate.cluster.usage.claims import SeriesCollision
from colocate.cluster.usage.node_series import Joined
from colocate.cluster.usage.snapshot import SignalHealth
from colocate.errors import UserError
from colocate.telemetry import (
    USAGE_LAST_SUCCESS,
    USAGE_QUERIES,
    USAGE_QUERY_SECONDS,
    USAGE_SAMPLES,
    USAGE_SERIES,
    Event,
)

_REJECTED = ("unknown", "duplicate", "not_a_number", "infinite", "negative", "malformed")
_SOME = 5
"""Nodes without a value that the log names."""


class Record:
    """Counts the results of queries by name; logs changes, not every round."""

    def __init__(self, queries: Mapping[str, str], clock: Clock) -> None:
        self._clock = clock
        self._health = {name: SignalHealth(name, query) for name, query in queries.items()}
        self._log = telemetry.logger()
        self._contested: dict[str, set[str]] = {}
        """By query, the nodes with series that disagreed in its last answer."""
        self._told: dict[str, str] = {}
        """By query, the matcher that was last logged."""

    @property
    def health(self) -> tuple[SignalHealth, ...]:
        return tuple(self._health.values())

    @property
    def all_failed(self) -> bool:
        return all(health.error for health in self._health.values())

    def took(self, name: str, seconds: float) -> None:
        USAGE_QUERY_SECONDS.labels(name).observe(seconds)

    def succeeded(self, name: str, joined: Joined, answer: Vector | None = None) -> None:
        """A query was answered, perhaps with nothing useful."""
        before = self._health[name]
        now = self._clock.time()
        health = before.succeeded(now, joined, answer.warnings if answer else ())
        self._health[name] = health
        USAGE_QUERIES.labels(name, "ok").inc()
        USAGE_LAST_SUCCESS.labels(name).set(now)
        counts = joined.counts
        USAGE_SAMPLES.labels(name, "joined").set(counts.joined)
        USAGE_SAMPLES.labels(name, "missing").set(counts.missing)
        USAGE_SAMPLES.labels(name, "contested").set(counts.contested)
        for fault in _REJECTED:
            if found := getattr(counts, fault):
                USAGE_SERIES.labels(name, fault).inc(found)
        if before.error:
            self._log.info(Event.USAGE_RECOVERED, signal=name, failures=before.failures)
        if health.warnings and health.warnings != before.warnings:
            self._log.warning(Event.USAGE_DOUBTFUL, signal=name, warnings=health.warnings)
        if told := [one for one in health.collisions if one.node in self._contested.get(name, ())]:
            self._tell_of(name, counts.contested, told[0])
        elif not health.collisions:
            self._told.pop(name, None)
        self._contested[name] = {one.node for one in health.collisions}
        news = before.last_success is None or set(before.missing) != set(health.missing)
        if news and counts.missing:
            self._log.warning(
                Event.USAGE_MISSING,
                signal=name,
                nodes=counts.missing,
                some=health.missing[:_SOME],
                unknown_series=counts.unknown,
                some_labels=health.strangers[:1],
            )

    def _tell_of(self, name: str, nodes: int, collision: SeriesCollision) -> None:
        """Called once a node was contested twice in a row: two true series may differ for a moment."""
        if self._told.get(name) == collision.matcher:
            return
        self._told[name] = collision.matcher
        self._log.warning(
            Event.USAGE_COLLISION,
            signal=name,
            nodes=nodes,
            node=collision.node,
            counted=collision.counted,
            counted_labels=collision.counted_labels,
            other=collision.other,
            other_labels=collision.other_labels,
            remedy=f"leave out the one that is not yours: add {collision.matcher} to usage.matchers",
        )

    def looked_at_units(self, ratios: Mapping[str, bool]) -> None:
        """Note whether the last values of each signal look like ratios, and log when they begin to."""
        begun = [name for name, ratio in ratios.items() if ratio and not self._health[name].ratio]
        for name, ratio in ratios.items():
            self._health[name] = msgspec.structs.replace(self._health[name], ratio=ratio)
        if begun:
            self._log.warning(
                Event.USAGE_RATIO,
                signals=begun,
                found="no node uses more than 1 % of its memory: these look like ratios, from 0 to 1",
                remedy="make the rule or query return percentages: multiply by 100",
            )

    def failed(self, name: str, error: ClusterError | UserError) -> None:
        before = self._health[name]
        self._health[name] = before.failed(str(error))
        USAGE_QUERIES.labels(name, _outcome(error)).inc()
        if before.error != str(error):
            self._log.warning(Event.USAGE_FAILED, signal=name, error=str(error))


def _outcome(error: ClusterError | UserError) -> str:
    match error:
        case Unreachable():
            return "unreachable"
        case ApiError() if error.reason == "Unreadable":
            return "unreadable"
        case UserError():
            return "misconfigured"
    return "refused"
