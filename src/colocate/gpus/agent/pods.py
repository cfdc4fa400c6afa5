"""The pods of this node as the cluster tells them, and what they and their owners are told: events, flags, deletions.

Limited to this node by a field selector: nothing here grows with the cluster. Everything is what was heard last.
"""

from collections.abc import Mapping

from colocate import telemetry
from colocate.aio import Watched, first
from colocate.clock import Clock
from colocate.cluster.changes import Change, Deleted
from colocate.cluster.client import Client
from colocate.cluster.errors import ClusterError, Conflict, Forbidden, NotFound
from colocate.cluster.events import EventRecorder, EventType, Reference
from colocate.cluster.json_patch import Add, Operation, Test
from colocate.cluster.resources import PODS, Selection, on_node, unfinished_on
from colocate.cluster.watch_cache import WatchCache, WatchSettings
from colocate.crashpoints import reached
from colocate.errors import UserError
from colocate.gpus import SEAL, GpuPod
from colocate.model.json_patch import pointer
from colocate.telemetry import Event

COMPONENT = "colocate-gpus"
_AGAIN = 60.0
"""Seconds until something that the API server refused is tried once more."""
_FIRST_GAP, _LAST_GAP, _QUIET = 1.0, 300.0, 600.0
"""Seconds between two writes to one pod: twice as many after each, until it was left alone for so long."""
_BURST, _PER_SECOND = 50.0, 10.0
"""Writes to all pods of the node at once, and from then on."""


class _WriteBudget:
    """How often annotations are written: a tenant who undoes it again and again must not drive the agent."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._gaps: dict[str, tuple[float, float]] = {}
        """By uid, when it was written last, and the gap after it."""
        self._left, self._counted = _BURST, clock.monotonic()

    def take(self, uid: str) -> bool:
        """Whether a pod may be written to now; it counts as written then."""
        now = self._clock.monotonic()
        self._gaps = {each: gap for each, gap in self._gaps.items() if now - gap[0] < max(gap[1], _QUIET)}
        self._left = min(_BURST, self._left + (now - self._counted) * _PER_SECOND)
        self._counted = now
        last, gap = self._gaps.get(uid, (float("-inf"), _FIRST_GAP / 2))
        if self._left < 1 or now - last < gap:
            return False
        self._left -= 1
        self._gaps[uid] = now, min(2 * gap, _LAST_GAP)
        return True


_MOST_READ = 2000
_LONGEST_READ = 64 << 20
"""Pods, and bytes, of a read that finds what the watch has not told: a tenant's pods must not fill the memory."""
_AHEAD = 60.0
"""Seconds after which it is read again whether a pod still lives that the watch does not tell of."""


_MOST_STATES = 4
"""States of one pod that are kept until they are settled: the first, with which it was bound, and the last ones."""


class NodePods:
    """Follows the pods of one node, and writes what it may."""

    def __init__(self, client: Client, node: str) -> None:
        self.client = client
        self.node = node
        self._clock = client.clock
        self._cache = WatchCache(
            client, PODS.read_as(GpuPod), unfinished_on(node), WatchSettings(from_server_cache=True)
        )
        self._events = EventRecorder(client, COMPONENT, node)
        self._by_uid = self._cache.add_index(lambda pod: pod.uid)
        self._denied: dict[str, str] = {}
        """By deed, why the API server does not let this agent do it."""
        self._not_before: dict[str, float] = {}
        self._budget = _WriteBudget(self._clock)
        self._ahead: dict[str, tuple[GpuPod, float]] = {}
        """By uid, pods that were read and that the watch has not come to yet, and when they are to be read again."""
        self._sealed: dict[str, list[GpuPod]] = {}
        """By uid, the states with a seal that the watch has told of and that are not settled."""
        self._cache.add_handler(self._heard)
        self._log = telemetry.logger()

    async def run(self) -> None:
        """Follow until cancelled."""
        await first(self._cache.run(), self._events.run())

    @property
    def changed(self) -> Watched:
        return self._cache.changed

    @property
    def is_synced(self) -> bool:
        """Whether the pods were ever listed: before that, an empty list says nothing."""
        return self._cache.health.synced

    async def synced(self) -> None:
        await self._cache.synced()

    @property
    def pods(self) -> Mapping[str, GpuPod] | None:
        """By uid; None until they have synced."""
        if not self.is_synced:
            return None
        told = {pod.uid: pod for pod in self._cache}
        if self._ahead:
            # However long the watch is behind or away: a pod that runs must not look gone.
            self._ahead = {
                uid: each
                for uid, each in self._ahead.items()
                if uid not in told and not self._cache.is_past(each[0].metadata.resource_version)
            }
            told |= {uid: pod for uid, (pod, _) in self._ahead.items()}
        return told

    def _heard(self, change: Change[GpuPod]) -> None:
        """The watch has come to this pod. Its seal is kept here: its owner may remove it in the next moment."""
        pod = change.last if isinstance(change, Deleted) else change.new
        self._ahead.pop(pod.uid, None)
        if isinstance(change, Deleted):
            self._sealed.pop(pod.uid, None)
        elif SEAL in pod.annotations:
            states = self._sealed.setdefault(pod.uid, [])
            if not states or states[-1].annotations != pod.annotations:
                del states[1 : len(states) - _MOST_STATES + 2]
                states.append(pod)

    @property
    def sealed_states(self) -> tuple[GpuPod, ...]:
        """States with a seal that pods are or were in since `forget_states`, each pod's in the order of time."""
        return tuple(pod for states in self._sealed.values() for pod in states)

    def forget_states(self) -> None:
        self._sealed.clear()

    async def read_ahead(self) -> None:
        """Read the pods of this node that wait to start, as they are now: those that the watch has not told of count
        from then on. ClusterError where the server does not answer, or with more than any node has.

        Where some have counted so for long, all are read that have not ended: what is not among them does not count
        any more."""
        now = self._clock.monotonic()
        all_of_them = any(again <= now for _, again in self._ahead.values())
        before = frozenset(self._ahead)
        waiting = Selection(fields=f"{on_node(self.node).fields},status.phase=Pending")
        pods = await self.client.list_now(
            PODS.read_as(GpuPod),
            unfinished_on(self.node) if all_of_them else waiting,
            most=_MOST_READ,
            longest=_LONGEST_READ,
        )
        if all_of_them:
            self._ahead = {uid: each for uid, each in self._ahead.items() if uid not in before}
        told = {pod.uid for pod in self._cache}
        again = self._clock.monotonic() + _AHEAD
        self._ahead |= {pod.uid: (pod, again) for pod in pods if pod.uid not in told}

    def named(self, key: str) -> GpuPod | None:
        found = [pod for pod in (self.pods or {}).values() if pod.key == key]
        return next((pod for pod in found if not pod.is_ending), found[0] if found else None)

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be heard or written, each in a sentence."""
        trouble = self._cache.health.last_error
        heard = [f"the pods of this node are not followed: {trouble}"] if trouble else []
        return (*heard, *self._denied.values())

    def tell(self, pod: GpuPod, reason: str, message: str, *, warning: bool = True) -> None:
        """An event on a pod."""
        about = Reference("Pod", pod.metadata.name, pod.metadata.namespace, pod.uid)
        self._events.record(about, reason, message, EventType.WARNING if warning else EventType.NORMAL)

    async def set_flags(self, pod: GpuPod, flags: Mapping[str, str]) -> None:
        """Set annotations of a pod, provided that it is still that pod and they are as they were seen."""
        deed = f"flags of {pod.uid}"
        if not self._may_try(deed) or not self._budget.take(pod.uid):
            return
        try:
            reached("gpus.flag")
            await self.client.patch(PODS, pod.metadata.name, flag_patch(pod, flags), pod.metadata.namespace)
            reached("gpus.flagged")
            self._denied.pop("flags", None)
            self._log.info(Event.GPU_FLAGGED, pod=pod.key, flags=dict(flags))
        except (Conflict, NotFound):
            pass  # It was changed or is gone: the watch tells, and it is decided again.
        except (ClusterError, UserError) as error:
            self._later(deed)
            if isinstance(error, Forbidden):
                self._denied["flags"] = (
                    f"the annotations {', '.join(sorted(flags))} of {pod.key} could not be set ({error}); GPUs are "
                    "shared without them; apply examples/gpus/pods-rbac.yaml to have them written"
                )
            self._log.warning(Event.GPU_UNFLAGGED, pod=pod.key, flags=sorted(flags), reason=str(error))

    async def delete(self, pod: GpuPod) -> None:
        """Delete a pod that must not start and that its controller creates again: this very pod, by its uid."""
        deed = f"deletion of {pod.uid}"
        if not self._may_try(deed):
            return
        try:
            reached("gpus.delete")
            await self.client.delete(PODS, pod.metadata.name, pod.metadata.namespace, uid=pod.uid)
            reached("gpus.deleted")
            self._denied.pop("deletion", None)
            self._log.info(Event.GPU_POD_DELETED, pod=pod.key, uid=pod.uid)
        except (Conflict, NotFound):
            pass  # It is gone, or another has its name.
        except (ClusterError, UserError) as error:
            self._later(deed)
            if isinstance(error, Forbidden):
                self._denied["deletion"] = (
                    f"pod {pod.key} must not start and could not be deleted ({error}); delete it, or apply "
                    "examples/gpus/pods-rbac.yaml to have that done"
                )
            self._log.warning(Event.GPU_POD_UNDELETED, pod=pod.key, uid=pod.uid, reason=str(error))

    def _may_try(self, deed: str) -> bool:
        now = self._clock.monotonic()
        self._not_before = {each: then for each, then in self._not_before.items() if then > now}
        return deed not in self._not_before

    def _later(self, deed: str) -> None:
        self._not_before[deed] = self._clock.monotonic() + _AGAIN


def flag_patch(pod: GpuPod, flags: Mapping[str, str]) -> tuple[Operation, ...]:
    """The patch that sets annotations of this very pod, as it was seen: it undoes no other change."""
    patch: list[Operation] = [
        Test(pointer("metadata", "uid"), pod.uid),
        Test(pointer("metadata", "resourceVersion"), pod.metadata.resource_version),
    ]
    if not pod.is_annotated:
        patch.append(Add(pointer("metadata", "annotations"), {}))
    patch += [Add(pointer("metadata", "annotations", name), value) for name, value in sorted(flags.items())]
    return tuple(patch)
