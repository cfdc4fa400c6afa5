"""Whether an extended resource may be removed from its node, decided from one look.

Not while a pod holds it or a plugin advertises it. Without `now`, also not if nothing would show whether it stays
away.
"""

from colocate.devices.extended_resources import ExtendedResource, ResourceState
from colocate.devices.resources.observe import ResourceLook
from colocate.errors import ColocateError, UserError

_PODS_NAMED = 10


class RemovalRefused(ColocateError):
    """The state of the cluster does not allow the change; nothing was changed."""


def removable(look: ResourceLook, name: str, *, now: bool) -> ExtendedResource:
    """The resource, if it may be removed now or after the grace; raises the reason if not. `now`: do not wait."""
    found, node = look.find(name), look.node.name
    if found is None:
        raise UserError(
            f"node {node} has no extended resource {name!r}; "
            f"'colocate resource list --node {node}' shows what it has"
        )
    where = f"{name} on node {node}"
    if found.holders:
        raise RemovalRefused(
            f"{where} is held by {_pods(found)} and stays until they are gone; delete them, or let them finish"
        )
    if found.state is ResourceState.ALIVE:
        raise RemovalRefused(
            f"{where} is advertised by a running plugin ({found.reason}); stop the plugin, for example by "
            "deleting its DaemonSet or keeping it off this node, and try again"
        )
    if found.state is ResourceState.UNKNOWN and not now:
        raise RemovalRefused(
            f"{where}: {found.reason}; look again later, or try it with --now: if a plugin runs, the resource "
            "comes back"
        )
    if look.node.silent and found.state is not ResourceState.LEAVING and not now:
        raise RemovalRefused(
            f"the kubelet of node {node} is silent, so nothing shows whether {name} stays away; start the "
            "kubelet, or use --now to remove it anyway"
        )
    return found


def _pods(found: ExtendedResource) -> str:
    named = [f"{holder.pod} ({holder.count})" for holder in found.holders[:_PODS_NAMED]]
    more = len(found.holders) - len(named)
    return ", ".join(named) + (f" and {more} more pods" if more else "")
