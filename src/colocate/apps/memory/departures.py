"""Pods that are asked to leave the node, through the API server's evictions."""

from colocate.apps.memory.cluster_view import ClusterView
from colocate.cluster.eviction import Evicted, EvictionSettings, evict
from colocate.errors import UserError
from colocate.memory import ActionOutcome, ActionResult, Evict, Recreate

_ONCE = EvictionSettings(deadline=0.0)
"""The ladder asks again by itself."""

_RESULTS = {
    Evicted.EVICTED: ActionResult.DONE,
    Evicted.GONE: ActionResult.GONE,
    Evicted.BLOCKED: ActionResult.BLOCKED,
    Evicted.REFUSED: ActionResult.REFUSED,
    Evicted.UNREACHABLE: ActionResult.UNREACHABLE,
}


async def send_off(cluster: ClusterView, action: Evict | Recreate) -> ActionOutcome:
    """Ask once for the eviction of this very pod."""
    pod = action.pod
    try:
        done = await evict(cluster.client, pod.name, pod.namespace, pod.uid, settings=_ONCE)
    except UserError as error:
        # A credential that cannot be read now may be there again in a moment.
        return ActionOutcome(action, ActionResult.UNREACHABLE, str(error))
    return ActionOutcome(action, _RESULTS[done.outcome], done.message)
