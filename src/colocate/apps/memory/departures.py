"""Pods that leave the node: evicted through the API, or created again elsewhere.

A pod that moves is asked to go only when the API server has said that it would take it anew, and when it is written
down. What happens then is read from the cluster alone, so a
process that dies anywhere in between is followed by one that finishes the move: the pod is gone, so it is created;
it is still ending, so it is waited for; it was never asked, so its note is dropped.
"""

from typing import Any

from colocate import telemetry
from colocate.apps.memory.cluster_view import ClusterView
from colocate.apps.memory.recreation import elsewhere, is_leaving, is_pinned, on_trial, same_pod
from colocate.apps.memory.store import Manifest, Store
from colocate.cluster.errors import AlreadyExists, ClusterError, Forbidden, Invalid, NotFound
from colocate.cluster.eviction import Evicted, EvictionSettings, evict
from colocate.cluster.resources import PODS
from colocate.errors import UserError
from colocate.memory.actions import Evict, PodRef, Recreate
from colocate.memory.facts import Outcome, Result
from colocate.model.memory import PodUid
from colocate.telemetry import Event

_ONCE = EvictionSettings(deadline=0.0)
"""The ladder asks again by itself."""

_RESULTS = {
    Evicted.EVICTED: Result.DONE,
    Evicted.GONE: Result.GONE,
    Evicted.BLOCKED: Result.BLOCKED,
    Evicted.REFUSED: Result.REFUSED,
    Evicted.UNREACHABLE: Result.UNREACHABLE,
}


async def send_off(cluster: ClusterView, action: Evict | Recreate) -> Outcome:
    """Ask once for the eviction of this very pod."""
    pod = action.pod
    try:
        done = await evict(cluster.client, pod.name, pod.namespace, pod.uid, settings=_ONCE)
    except UserError as error:
        # A credential that cannot be read now may be there again in a moment.
        return Outcome(action, Result.UNREACHABLE, str(error))
    return Outcome(action, _RESULTS[done.outcome], done.message)


async def move_elsewhere(cluster: ClusterView, store: Store, action: Recreate) -> Outcome:
    """Write the pod down, then ask it to go; `finish_moves` creates it again. FAILED where that could not be."""
    pod = action.pod
    try:
        found: dict[str, Any] = await cluster.client.get(PODS, pod.name, pod.namespace)
    except NotFound:
        return Outcome(action, Result.GONE)
    except (ClusterError, UserError) as error:
        return Outcome(action, Result.UNREACHABLE, str(error))
    if found["metadata"]["uid"] != pod.uid:
        return Outcome(action, Result.GONE)
    hostname = cluster.node.hostname if cluster.node else action.avoid
    if is_pinned(found, cluster.node_name, hostname):
        return Outcome(action, Result.FAILED, "its own node selector or affinity leaves it no other node")
    manifest = elsewhere(found, hostname)
    try:
        await _try_creation(cluster, manifest)
    except (Forbidden, Invalid) as error:
        return Outcome(action, Result.FAILED, f"it could not be created again: {error}")
    except (ClusterError, UserError) as error:
        return Outcome(action, Result.UNREACHABLE, str(error))
    store.remember(manifest)
    outcome = await send_off(cluster, action)
    if outcome.result in (Result.BLOCKED, Result.REFUSED):
        store.forget(pod.uid)
    return outcome


async def _try_creation(cluster: ClusterView, manifest: Manifest) -> None:
    try:
        await cluster.client.create(PODS, on_trial(manifest), manifest.namespace, dry_run=True)
    except Forbidden as error:
        # The pod's own end makes room in its quota.
        if "exceeded quota" not in str(error):
            raise


async def finish_moves(
    cluster: ClusterView, store: Store, manifests: list[Manifest], told: dict[PodUid, str]
) -> None:
    """Create the pods that have ended; those that still end are looked at again later.

    `told` is what an event has said already of pods that could not be created.
    """
    for manifest in manifests:
        try:
            await _finish(cluster, store, manifest)
        except (ClusterError, UserError) as error:
            _tell(cluster, manifest, str(error), told)
            telemetry.logger().warning(
                Event.MEMORY_MOVE_UNFINISHED, pod=f"{manifest.namespace}/{manifest.name}", reason=str(error)
            )


def _tell(cluster: ClusterView, manifest: Manifest, why: str, told: dict[PodUid, str]) -> None:
    if told.get(manifest.uid) == why:
        return
    told[manifest.uid] = why
    message = f"It left {cluster.node_name} and is not created again yet, which is tried at every turn: {why}"
    pod = PodRef(manifest.uid, manifest.namespace, manifest.name)
    cluster.tell_pod(pod, "ColocationMemoryMovedElsewhereNot", message, warning=True)
    cluster.tell_node("ColocationMemoryMovedElsewhereNot", f"{pod}: {message}", warning=True)


async def _finish(cluster: ClusterView, store: Store, manifest: Manifest) -> None:
    try:
        found: dict[str, Any] = await cluster.client.get(PODS, manifest.name, manifest.namespace)
    except NotFound:
        try:
            await cluster.client.create(PODS, manifest.body, manifest.namespace)
        except AlreadyExists:
            pass  # By us, before a crash, or by somebody else: there is such a pod.
        telemetry.logger().info(Event.MEMORY_POD_MOVED, pod=f"{manifest.namespace}/{manifest.name}")
    else:
        if same_pod(found, manifest) and is_leaving(found):
            return
    store.forget(manifest.uid)
