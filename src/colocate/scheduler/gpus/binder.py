"""Binds pods to nodes with their GPUs: books, writes the annotations, binds; and undoes it where one of these fails.

One process writes at a time, by a lease that is asked before every write; every write says which pod it means, by its
uid and, where it changes it, by its version. The binding itself carries the annotations once more, so that they
cannot change in between; it is all that is written where pods may not be patched. A process that dies after the
annotations leaves a pod that is bound nowhere: they have no effect then, and are overwritten when the pod is
scheduled again.
"""

from collections.abc import Mapping, Sequence

from colocate import telemetry
from colocate.aio import deadline
from colocate.clock import Clock
from colocate.cluster import json_patch
from colocate.cluster.client import Client
from colocate.cluster.errors import (
    ApiError,
    ClusterError,
    Conflict,
    Forbidden,
    NotFound,
    PreconditionFailed,
    ServerError,
)
from colocate.cluster.json_patch import Patch
from colocate.cluster.lease import LeaseHolder
from colocate.cluster.resources import PODS, UNFINISHED
from colocate.errors import ColocateError, UserError
from colocate.gpus import SEAL, annotations_for, seal, wish_of
from colocate.gpus.packing import GpuDemand
from colocate.gpus.packing.cluster_book import ClusterBook, GpuChoice
from colocate.gpus.packing.objects import PackedPod
from colocate.model.json_patch import pointer
from colocate.scheduler.gpus.feed import GpuFeed
from colocate.telemetry import Event
from colocate.wire.extender_questions import BindingAsked

_ATTEMPTS = 4
"""Attempts to write annotations while the pod's version keeps changing."""
_NANOSECONDS = 1_000_000_000


class BindRefused(ColocateError):
    """A pod cannot be bound; the sentence is for kube-scheduler, which puts it into the pod's events."""


class GpuBinder:
    """Answers the bind verb."""

    def __init__(
        self,
        feed: GpuFeed,
        client: Client,
        lease: LeaseHolder,
        clock: Clock,
        *,
        keys: Sequence[bytes] = (),
        doubt: float = 60.0,
        timeout: float = 4.0,
    ) -> None:
        self._feed = feed
        self._book: ClusterBook = feed.book
        self._client = client
        self._lease = lease
        self._clock = clock
        self.keys = keys
        """The keys of bookings; the first seals."""
        self._doubt = doubt
        self._timeout = timeout
        self._under_way: set[str] = set()
        self._pods = PODS.read_as(PackedPod)
        self._last_time = 0
        self._unshown: dict[str, str] = {}
        """Names by uid of pods that are booked though the watch has not shown them: after a gap it does not tell of
        their end."""
        self.caught_up = False
        """Whether the book has all that earlier holders of the lease have bound."""

    async def bind(self, asked: BindingAsked) -> str:
        """Bind one pod; says why it could not be bound, empty where it was."""
        if asked.uid in self._under_way:
            return self._told("twice", asked, "it is being bound already")
        self._under_way.add(asked.uid)
        try:
            async with deadline(self._clock, self._timeout):
                await self._bind(asked)
        except BindRefused as refused:
            return self._told("refused", asked, str(refused))
        except TimeoutError:
            return self._told("failed", asked, f"the API server has not answered within {self._timeout:g} s")
        except (ClusterError, UserError) as error:
            return self._told("failed", asked, str(error))
        finally:
            self._under_way.discard(asked.uid)
        telemetry.GPU_BINDINGS.labels("bound").inc()
        return ""

    def _told(self, outcome: str, asked: BindingAsked, why: str) -> str:
        telemetry.GPU_BINDINGS.labels(outcome).inc()
        telemetry.logger().warning(
            Event.GPU_BIND_FAILED,
            pod=f"{asked.namespace}/{asked.name}",
            node=asked.node,
            outcome=outcome,
            reason=why,
        )
        return why

    async def _bind(self, asked: BindingAsked) -> None:
        self._check_lease()
        if unready := self._feed.unready():
            raise BindRefused(unready[0])
        pod = self._feed.pod(asked.namespace, asked.name, asked.uid) or await self._get(asked)
        if pod.spec.node_name:
            self._enter(pod)
        if pod.spec.node_name == asked.node:
            return
        if pod.spec.node_name:
            raise BindRefused(f"it is on node {pod.spec.node_name} already")
        demand = self._book.demand(pod)
        if isinstance(demand, str):
            raise BindRefused(demand)
        if demand is None:
            await self._client.bind(asked.name, asked.node, asked.namespace, asked.uid)
            return
        earlier = self._book.doubted_until(pod.uid)
        choice = self._book.reserve(pod, asked.node, self._clock.monotonic() + self._doubt)
        if choice is None:
            if node := self._book.settled_on(pod.uid):
                raise BindRefused(f"an earlier bind to {node} may still come through; it is tried again")
            raise BindRefused(self._why_not(pod, demand, asked.node))
        self._book.begin(pod.uid)
        await self._carry_out(asked, pod, choice, earlier)
        if not self._feed.shows(pod):
            self._unshown[pod.uid] = pod.key

    def _why_not(self, pod: PackedPod, demand: GpuDemand, node: str) -> str:
        if waits := self._book.waits_for(pod, node):
            return waits
        reason, _ = self._book.why_not(demand, node)
        return f"another pod was quicker, or the GPUs of {node} have changed: {reason}"

    async def _carry_out(
        self, asked: BindingAsked, pod: PackedPod, choice: GpuChoice, earlier: float | None
    ) -> None:
        """`earlier`: until when an earlier bind is in doubt; its booking is kept even if this one fails."""
        written = self._annotations(pod, choice)
        sent = False
        try:
            written = await self._annotate(asked, pod, choice, written)
            self._check_lease()
            sent = True
            await self._client.bind(asked.name, asked.node, asked.namespace, asked.uid, written)
        except BaseException as error:
            if sent:
                # Held until the API shows what became of it, also where we are cut off while we look.
                self._book.doubt(asked.uid, self._clock.monotonic() + self._doubt)
                if not await self._is_unbound(asked, error):
                    raise
            if earlier is None:
                self._book.release(asked.uid)
            else:
                self._book.doubt(asked.uid, earlier)
            if isinstance(error, ApiError | BindRefused):
                await self._take_back(asked, written)
            raise

    async def _is_unbound(self, asked: BindingAsked, error: BaseException) -> bool:
        """Whether a bind that failed has certainly not been done."""
        if isinstance(error, NotFound):
            return True
        if not isinstance(error, ApiError) or isinstance(error, ServerError):
            return False
        try:
            pod = await self._get(asked)
        except BindRefused:
            return True
        except (ClusterError, UserError):
            return False
        if pod.spec.node_name:
            self._enter(pod)
        return not pod.spec.node_name

    def _check_lease(self) -> None:
        if not self._lease.held:
            raise BindRefused(
                "this replica does not hold the lease, and another binds pods with GPUs; it is tried again"
            )
        if not self.caught_up:
            raise BindRefused("this replica is still reading what was bound before; it is tried again")

    async def catch_up(self) -> None:
        """Read the bound pods from the API server itself: earlier holders of the lease may have bound pods that our
        watch, which may stand still, has not shown. Call it with the lease, and again whenever it was lost."""
        for pod in await self._client.list(self._pods, UNFINISHED):
            self._enter(pod)
        self.caught_up = self._lease.held

    def _enter(self, pod: PackedPod) -> None:
        """Book a pod as the API server itself has answered; the answer may be older than what the watch shows."""
        shown = self._feed.pod(pod.metadata.namespace, pod.metadata.name, pod.uid)
        if shown is not None and (shown.spec.node_name or shown.is_finished):
            return
        self._book.put_pod(pod)
        if shown is None and pod.spec.node_name:
            self._unshown[pod.uid] = pod.key

    async def _look_for_unshown(self) -> None:
        for uid, key in list(self._unshown.items()):
            namespace, _, name = key.partition("/")
            if self._feed.pod(namespace, name, uid) is None:
                try:
                    await self._get(BindingAsked(name, namespace, uid, ""))
                except BindRefused:
                    self._book.remove_pod(uid)
                except (ClusterError, UserError):
                    continue
                else:
                    continue
            self._unshown.pop(uid, None)

    async def resolve_doubts(self) -> None:
        """Look at pods whose bind may have come through, once their time is over, and at those that are booked though
        the watch does not show them."""
        await self._look_for_unshown()
        for booking in self._book.doubts(self._clock.monotonic()):
            namespace, _, name = booking.key.partition("/")
            try:
                pod = await self._get(BindingAsked(name, namespace, booking.uid, ""))
            except BindRefused:
                self._book.release(booking.uid)
            except (ClusterError, UserError):
                continue
            else:
                if pod.spec.node_name:
                    self._enter(pod)
                elif booking in self._book.doubts(self._clock.monotonic()):
                    # Not where it was bound again while we looked.
                    self._book.release(booking.uid)

    async def _get(self, asked: BindingAsked) -> PackedPod:
        try:
            pod = await self._client.get(self._pods, asked.name, asked.namespace)
        except NotFound:
            raise BindRefused("it is gone") from None
        if pod.uid != asked.uid:
            raise BindRefused("another pod has its name by now")
        if pod.is_finished:
            # The watch tells nothing of it any more.
            raise BindRefused("it has ended")
        return pod

    def _annotations(self, pod: PackedPod, choice: GpuChoice) -> Mapping[str, str]:
        demand = choice.demand
        keys = demand.dialect.keys_of(pod.annotations)
        time = self._number(pod, choice)
        written = dict(
            annotations_for(
                demand.dialect, keys, demand.asks, choice.given, choice.inventory, assume_time=time
            )
        )
        if self.keys:
            written[SEAL] = seal(pod.uid, demand.dialect, demand.asks, choice.given, time, self.keys[0])
        return written

    def _number(self, pod: PackedPod, choice: GpuChoice) -> int:
        """The time of a booking, which is the number of its seal: no two have the same, and a later one of a pod has
        a higher one, also where the replica before this one had a faster clock."""
        demand = choice.demand
        wish = wish_of(pod, demand.dialect, demand.asks, choice.inventory, self.keys)
        now = int(self._clock.time() * _NANOSECONDS)
        self._last_time = max(now, self._last_time + 1)
        if wish.number >= self._last_time:
            self._last_time = wish.number + 1
        self._book.number(pod.uid, self._last_time if self.keys else 0)
        return self._last_time

    async def _annotate(
        self, asked: BindingAsked, pod: PackedPod, choice: GpuChoice, written: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Write the annotations; says what was written."""
        for attempt in range(_ATTEMPTS):
            self._check_lease()
            if attempt:
                pod = await self._get(asked)
                if pod.spec.node_name:
                    self._enter(pod)
                    raise BindRefused(f"it is on node {pod.spec.node_name} already")
                # It may speak another set of annotations by now, and that is the one that is read.
                written = self._annotations(pod, choice)
            try:
                await self._client.patch(self._pods, asked.name, _setting(pod, written), asked.namespace)
                break
            except (Conflict, PreconditionFailed):
                if attempt == _ATTEMPTS - 1:
                    raise
            except NotFound:
                raise BindRefused("it is gone") from None
            except Forbidden:
                # The binding sets them as well: without this right they only appear a moment later.
                break
        return written

    async def _take_back(self, asked: BindingAsked, written: Mapping[str, str]) -> None:
        """Remove our annotations from a pod that is bound nowhere, where they are still ours. They do no harm, so a
        failure does not matter."""
        try:
            if not self._lease.held:
                return
            pod = await self._get(asked)
            ours = [name for name, value in written.items() if pod.annotations.get(name) == value]
            if ours and not pod.spec.node_name:
                removal: list[json_patch.Operation] = [*_this_very(pod)]
                for name in ours:
                    removal += json_patch.remove(("metadata", "annotations", name), written[name])
                await self._client.patch(self._pods, asked.name, tuple(removal), asked.namespace)
        except (BindRefused, ClusterError, UserError) as error:
            telemetry.logger().debug(
                Event.GPU_BIND_FAILED, pod=f"{asked.namespace}/{asked.name}", reason=str(error)
            )


def _this_very(pod: PackedPod) -> Patch:
    """The tests that it is still this pod, in this version."""
    return (
        json_patch.Test("/metadata/uid", pod.uid),
        json_patch.Test("/metadata/resourceVersion", pod.metadata.resource_version),
    )


def _setting(pod: PackedPod, written: Mapping[str, str]) -> Patch:
    operations: list[json_patch.Operation] = [*_this_very(pod)]
    if not pod.is_annotated:
        return (*operations, json_patch.Add("/metadata/annotations", dict(written)))
    for name, value in written.items():
        operations.append(json_patch.Add(pointer("metadata", "annotations", name), value))
    return tuple(operations)
