"""Reads Koordinator's annotations of pods and nodes.

What one says wrongly is taken as not said, and what it says of other resources is skipped over: a node's annotation
must not stop every pod of the cluster.
"""

import msgspec

from colocate.model import go
from colocate.model.load import Aggregation, PerResource, UsageThresholds
from colocate.model.quantity import MOST, Quantities, stated

SCALING = "scheduling.koordinator.sh/load-estimated-scaling-factors"
THRESHOLDS = "scheduling.koordinator.sh/usage-thresholds"
RAW_ALLOCATABLE = "node.koordinator.sh/raw-allocatable"

_AGGREGATIONS: dict[str, Aggregation] = {str(kind): kind for kind in Aggregation}


class _Read(msgspec.Struct, frozen=True, rename="camel"):
    pass


class _Numbers(_Read, frozen=True):
    """For CPU and memory; those for other resources are skipped over."""

    cpu: int | None = None
    memory: int | None = None


class _AggregatedUsage(_Read, frozen=True):
    usage_thresholds: _Numbers | None = None
    usage_aggregation_type: str | None = None
    usage_aggregated_duration: str | None = None


class _CustomThresholds(_Read, frozen=True):
    usage_thresholds: _Numbers | None = None
    prod_usage_thresholds: _Numbers | None = None
    aggregated_usage: _AggregatedUsage | None = None


def _per_resource(stated: _Numbers | None) -> PerResource | None:
    """ValueError for a number that Kubernetes would not read."""
    if stated is None:
        return None
    if any(abs(number or 0) > MOST for number in (stated.cpu, stated.memory)):
        raise ValueError("more than Kubernetes counts")
    return PerResource(stated.cpu, stated.memory)


def thresholds(annotation: str) -> UsageThresholds | None:
    if not annotation:
        return None
    try:
        read = msgspec.json.decode(annotation, type=_CustomThresholds)
        aggregated = read.aggregated_usage or _AggregatedUsage()
        return UsageThresholds(
            _per_resource(read.usage_thresholds),
            _per_resource(read.prod_usage_thresholds),
            _per_resource(aggregated.usage_thresholds),
            _AGGREGATIONS.get(aggregated.usage_aggregation_type or ""),
            _span(aggregated.usage_aggregated_duration or ""),
        )
    except (ValueError, RecursionError):
        return None


def percents(annotation: str) -> PerResource:
    try:
        read = msgspec.json.decode(annotation, type=_Numbers) if annotation else None
        return _per_resource(read) or PerResource()
    except (ValueError, RecursionError):
        return PerResource()


def raw_allocatable(annotation: str) -> PerResource:
    try:
        return stated(msgspec.json.decode(annotation, type=Quantities)) if annotation else PerResource()
    except (msgspec.DecodeError, RecursionError):
        return PerResource()


def _span(text: str) -> float:
    """Seconds; 0 where that is no span of time."""
    try:
        return max(0.0, go.seconds(text))
    except ValueError:
        return 0.0
