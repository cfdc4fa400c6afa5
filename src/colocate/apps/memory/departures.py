"""Pods that are asked to leave the node, through the API server's evictions."""

from colocate.apps.memory.cluster_view import ClusterView
from colocate.cluster.eviction import Evicted, EvictionSettings, evict
from colocate.errors import UserError
from colocate.memory import Evict, Outcome, Recreate, Result

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
