"""Pods that leave the node: evicted through the API, or created again elsewhere.

A pod that moves is written down before it is asked to go. What happens then is read from the cluster alone, so a
process that dies anywhere in between is followed by one that finishes the move: the pod is gone, so it is created;
it is still ending, so it is waited for; it was never asked, so its note is dropped.
"""

from typing import Any

from colocate import telemetry
from colocate.apps.memory.cluster_view import ClusterView
from colocate.apps.memory.recreation import elsewhere, is_leaving, same_pod
from colocate.apps.memory.store import Manifest, Store
from colocate.cluster.errors import AlreadyExists, ClusterError, NotFound
from colocate.cluster.eviction import Evicted, EvictionSettings, evict
from colocate.cluster.resources import PODS
from colocate.errors import UserError
from colocate.memory.actions import Evict, Recreate
from colocate.memory.facts import Outcome, Result
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
    """Write the pod down, then ask it to go; `finish_moves` creates it again."""
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
    store.remember(elsewhere(found, hostname))
    outcome = await send_off(cluster, action)
    if outcome.result in (Result.BLOCKED, Result.REFUSED):
        store.forget(pod.uid)
    return outcome


async def finish_moves(cluster: ClusterView, store: Store, manifests: list[Manifest]) -> None:
    """Create the pods that have ended; those that still end are looked at again later."""
    for manifest in manifests:
        try:
            await _finish(cluster, store, manifest)
        except (ClusterError, UserError) as error:
            telemetry.logger().warning(
                Event.MEMORY_MOVE_UNFINISHED, pod=f"{manifest.namespace}/{manifest.name}", reason=str(error)
            )


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
