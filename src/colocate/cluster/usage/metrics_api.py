"""Use of nodes from metrics.k8s.io, which most clusters have: for nodes that are missing from Prometheus.

It knows the last half minute or so, and nothing of longer windows. Its answer is bounded in length and read in a
thread, as Prometheus' are: another server gives it, and the API server only hands it on.
"""

import asyncio
import math
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from colocate.aio import deadline
from colocate.cluster.client import Client
from colocate.cluster.errors import ClusterError, Doing, NotFound, Unreachable, unreadable
from colocate.cluster.resources import Resource
from colocate.cluster.transport import Request
from colocate.cluster.usage.claims import Sample
from colocate.cluster.usage.directory import Directory
from colocate.cluster.usage.node_series import Counts, Joined, fault_of
from colocate.cluster.usage.signals import Measured
from colocate.model import quantity

_EXAMPLES = 5
_LONGEST = 32 << 20
"""Bytes of an answer: 15 000 nodes with 2 KiB each, of which labels are the most."""


class _Metadata(msgspec.Struct, frozen=True):
    name: str


class NodeMetrics(msgspec.Struct, frozen=True):
    """What the metrics API says of one node."""

    metadata: _Metadata
    usage: dict[str, str | int | float]
    timestamp: datetime


NODE_METRICS: Resource[NodeMetrics] = Resource(
    "nodes", "NodeMetrics", "metrics.k8s.io", "v1beta1", namespaced=False, shape=NodeMetrics
)


class _Answer(msgspec.Struct, frozen=True):
    items: list[NodeMetrics] | None = None


class MetricsApi:
    """Asks the metrics API."""

    def __init__(self, client: Client, timeout: float = 10.0) -> None:
        self._client = client
        self._timeout = timeout

    async def nodes(self, directory: Directory, now: float) -> Mapping[Measured, Joined]:
        """The use of every node, in percent of its capacity. A ClusterError where there is no answer."""
        try:
            # Shorter than the client's timeout: samples of Prometheus wait to be published.
            async with deadline(self._client.clock, self._timeout):
                answer = await self._listed()
        except TimeoutError:
            raise Unreachable(
                f"cannot list {NODE_METRICS.qualified}: no answer within {self._timeout:g} s"
            ) from None
        except NotFound:
            raise ClusterError(
                f"cannot list {NODE_METRICS.qualified}: this cluster serves no metrics API; install metrics-server, "
                f"or set usage.metricsApi to false"
            ) from None
        return {measured: join(measured, answer, directory, now) for measured in Measured}

    async def _listed(self) -> list[NodeMetrics]:
        doing = Doing("list", NODE_METRICS.qualified)
        body = await self._client.ask(Request(doing, "GET", NODE_METRICS.path(""), at_most=_LONGEST))
        return await asyncio.to_thread(_read, doing, body)


def _read(doing: Doing, body: bytes) -> list[NodeMetrics]:
    try:
        return msgspec.json.decode(body, type=_Answer).items or []
    except (ValueError, RecursionError) as error:
        raise unreadable(doing, str(error)) from error


def join(measured: Measured, answer: list[NodeMetrics], directory: Directory, now: float) -> Joined:
    """What the answer says of one resource."""
    samples: dict[str, Sample] = {}
    strangers: list[Mapping[str, str]] = []
    count = dict.fromkeys(Counts.__struct_fields__, 0)
    for metrics in answer:
        node = directory.nodes.get(metrics.metadata.name)
        if node is None:
            count["unknown"] += 1
            strangers.append({"name": metrics.metadata.name})
            continue
        capacity = node.capacity.cpu if measured is Measured.CPU else node.capacity.memory
        used = _used(measured, metrics)
        if used is None or not capacity:
            count["malformed"] += 1
        elif fault := fault_of(percent := _percent(used, capacity)):
            count[fault] += 1
        else:
            samples[node.name] = Sample(max(0.0, percent), min(now, max(0.0, _seconds(metrics.timestamp))))
    missing = [name for name in directory.nodes if name not in samples]
    count |= {"series": len(answer), "joined": len(samples), "missing": len(missing)}
    return Joined({}, samples, Counts(**count), tuple(missing), tuple(strangers[:_EXAMPLES]))


def _used(measured: Measured, metrics: NodeMetrics) -> int | None:
    text = metrics.usage.get(measured)
    if text is None:
        return None
    try:
        return quantity.milli(text) if measured is Measured.CPU else quantity.whole(text)
    except ValueError:
        return None


def _percent(used: int, capacity: int) -> float:
    try:
        return 100 * used / capacity
    except OverflowError:
        return math.inf


def _seconds(stamp: datetime) -> float:
    # One without a zone would else be of ours, and the first years have no such time there.
    return (stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp()
