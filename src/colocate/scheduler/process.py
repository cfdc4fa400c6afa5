"""`colocate scheduler serve`: the process that joins feed, judges, taints and server.

SIGTERM and SIGINT stop it: requests under way are finished, taints are removed as configured, the last decisions are
written. Failures of Prometheus, of the API server or of a single request do not stop it.
"""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from colocate import __version__, telemetry
from colocate.aio import first, with_signals
from colocate.clock import Clock, SystemClock
from colocate.cluster.client import Client
from colocate.cluster.usage import EXPIRY, MetricsApi, Prometheus, UsagePoller
from colocate.errors import UserError
from colocate.http import metrics
from colocate.load import LoadTable
from colocate.scheduler.loop.decision_log import DecisionLog
from colocate.scheduler.loop.load_judge import LoadJudge
from colocate.scheduler.loop.table_feed import TableFeed
from colocate.scheduler.loop.taints import REMOVAL, Tainting, tainted
from colocate.scheduler.server.extender import serving
from colocate.scheduler.server.judge import Judge
from colocate.scheduler.server.queries import Telling
from colocate.scheduler.server.socket import Listening
from colocate.scheduler.settings import Act, SchedulerConfig
from colocate.telemetry import Event

if TYPE_CHECKING:
    from colocate.scheduler.gpus.part import GpuScheduling


class SchedulerProcess(msgspec.Struct, frozen=True):
    """A scheduler that runs."""

    listening: Listening
    facts: TableFeed
    judge: Judge
    decisions: DecisionLog
    tainting: Tainting | None
    gpus: "GpuScheduling | None" = None


async def run_scheduler(config: SchedulerConfig, client: Client, clock: Clock | None = None) -> None:
    """Run until a signal says stop."""
    stop = asyncio.Event()
    with_signals(stop=stop.set)
    async with (
        metrics.serving(config.metrics.address),
        running(config, client, clock or SystemClock()) as scheduler,
    ):
        if config.samples:
            await first(stop.wait(), _settle(scheduler.facts))
        await stop.wait()


def _gpu_scheduling(config: SchedulerConfig, client: Client, clock: Clock) -> "GpuScheduling":
    """Imported here because packing needs numpy, which scheduling by load does not."""
    try:
        from colocate.scheduler.gpus.part import GpuScheduling
    except ImportError as missing:
        raise UserError(
            "act: gpus needs one more package; install numpy, or the extra 'packing' of kube-colocate"
        ) from missing
    if config.shadow:
        raise UserError("shadow: pods with GPUs cannot be bound in shadow; leave gpus out of act, or shadow")
    return GpuScheduling(config.gpus, client, clock)


async def _settle(facts: TableFeed) -> None:
    """Once the first samples are there, log it and exempt the facts from garbage collection."""
    await facts.sampled.beyond(0)
    spare_the_garbage_collector()
    telemetry.logger().info(
        Event.SCHEDULER_READY,
        nodes=len(facts.nodes),
        pods=len(facts.pods),
        sampled=len(facts.table.loads),
    )


@asynccontextmanager
async def running(config: SchedulerConfig, client: Client, clock: Clock) -> AsyncIterator[SchedulerProcess]:
    """Run for as long as the body does; nothing is left behind."""
    usage = config.usage
    if config.samples and not usage.prometheus.url and not usage.metrics_api:
        raise UserError(
            "usage.prometheus.url: no source of samples is configured; write http://HOST:PORT of Prometheus into "
            "the configuration, or usage.metricsApi: true"
        )
    settings = config.load.settings(usage.window)
    decisions = DecisionLog(config.decisions, settings, shadow=config.shadow)
    facts = TableFeed(LoadTable(settings), decisions, client, clock)
    judge = LoadJudge(
        facts,
        decisions,
        clock,
        nodes_kept=config.decisions.nodes,
        shadow=config.shadow,
        sampled=config.samples,
    )
    gpus = _gpu_scheduling(config, client, clock) if Act.GPUS in config.act else None
    async with AsyncExitStack() as stack:
        prometheus = None
        if usage.prometheus.url:
            prometheus = Prometheus(usage.prometheus, clock)
            stack.push_async_callback(prometheus.close)
        metrics_api = MetricsApi(client, usage.prometheus.timeout) if usage.metrics_api else None
        poller = UsagePoller(
            config.asked(),
            facts.known_nodes,
            clock,
            prometheus,
            metrics_api,
            expiry=config.load.staleness.after or EXPIRY,
        )
        tainting = None
        if Act.TAINTS in config.act:
            tainting = Tainting(config.taints, facts, judge, client, clock, shadow=config.shadow)
        telling = Telling(config, facts, poller, judge, decisions, clock, tainting)
        # Listen first, so that an address in use is reported at once.
        listening = await stack.enter_async_context(
            serving(config.server, judge, clock, telling.pages(), gpus)
        )
        telemetry.logger().info(
            Event.SCHEDULER_STARTED,
            version=__version__,
            act=list(config.act),
            shadow=config.shadow,
            policy=config.load.policy,
            address=listening.url,
        )
        if gpus is not None:
            await stack.enter_async_context(gpus.running())
        await stack.enter_async_context(
            _working(facts, poller if config.samples else None, decisions, tainting)
        )
        yield SchedulerProcess(listening, facts, judge, decisions, tainting, gpus)
    telemetry.logger().info(Event.SCHEDULER_STOPPED)


@asynccontextmanager
async def _working(
    facts: TableFeed, poller: UsagePoller | None, decisions: DecisionLog, tainting: Tainting | None
) -> AsyncIterator[None]:
    """Run the background tasks. Taints are removed while nodes are still watched."""
    sampling = [facts.follow(poller), _poll(facts, poller)] if poller is not None else []
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(work)
            for work in (
                facts.nodes.run(),
                facts.pods.run(),
                decisions.run(),
                *sampling,
            )
        ]
        try:
            if tainting is None:
                tasks.append(group.create_task(_tell_of_taints(facts)))
                yield
            else:
                async with tainting.running():
                    yield
        finally:
            for task in tasks:
                task.cancel()


async def _tell_of_taints(facts: TableFeed) -> None:
    """Warn of taints that this process does not write: their writer may be alive, or was killed."""
    await facts.nodes.synced()
    if nodes := tainted(facts.nodes):
        telemetry.logger().warning(
            Event.TAINTS_FOUND,
            nodes=len(nodes),
            remedy=f"unless another process writes them: act: [taints], or {REMOVAL}",
        )


def spare_the_garbage_collector() -> None:
    """Exempt all present objects, the facts of a large cluster: scanning them would delay answers.

    Unused objects are still freed by their reference counts; facts are never part of a cycle.
    """
    gc.collect()
    gc.freeze()


async def _poll(facts: TableFeed, poller: UsagePoller) -> None:
    """Poll for samples once the nodes are known."""
    await facts.synced()
    await poller.run()
