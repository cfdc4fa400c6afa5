"""Put an extended resource on a node by hand: a number in its capacity, which the kubelet makes allocatable.

Refuses names that the API server or the kubelet does not accept, and resources of a running plugin, whose number the
kubelet would restore with its next sync.
"""

import msgspec

from colocate.cluster.client import Client
from colocate.cluster.errors import PreconditionFailed
from colocate.cluster.json_patch import Patch
from colocate.cluster.node_status import patch_for
from colocate.cluster.resources import NODES
from colocate.devices.extended_resources import ExtendedResource, ResourceState
from colocate.devices.resources.observe import ResourceLook, ResourceObserver
from colocate.devices.resources.refusal import RemovalRefused
from colocate.errors import UserError
from colocate.model.resource_name import why_not_allowed

MOST = 2**63 - 1
_ATTEMPTS = 5
_KUBELETS = (ResourceState.ALIVE, ResourceState.UNHEALTHY, ResourceState.STALE)


class AdvertisementWish(msgspec.Struct, frozen=True):
    """A number of a resource, on a node."""

    node: str
    name: str
    count: int


class AdvertisementPlan(msgspec.Struct, frozen=True):
    """What is there, and the patch that changes it; no patch if nothing changes."""

    found: ExtendedResource | None
    patch: Patch


def read_wish(node: str, text: str) -> AdvertisementWish:
    """NAME=N, checked."""
    name, equals, number = text.partition("=")
    if not equals:
        raise UserError(f"{text!r} has no number; write NAME=N, such as example.com/fan=4")
    if why := why_not_allowed(name):
        raise UserError(f"{name!r} cannot be the name of an extended resource: {why}")
    if not number.isascii() or not number.isdigit() or len(number) > 19 or int(number) > MOST:
        raise UserError(f"{number!r} is not a count of {name}; write a whole number from 0 to {MOST}")
    return AdvertisementWish(node, name, int(number))


async def plan(observer: ResourceObserver, wish: AdvertisementWish) -> AdvertisementPlan:
    """What would be done; raises the reason if it is not possible."""
    return _plan(await observer.node(wish.node), wish)


async def advertise(
    client: Client, observer: ResourceObserver, wish: AdvertisementWish, dry_run: bool = False
) -> AdvertisementPlan:
    """Write the number; after a conflict with another writer, read the node again first."""
    for _ in range(_ATTEMPTS):
        made = await plan(observer, wish)
        if not made.patch:
            return made
        try:
            await client.patch(NODES, wish.node, made.patch, subresource="status", dry_run=dry_run)
            return made
        except PreconditionFailed:
            continue
    raise RemovalRefused(f"something keeps writing to the status of node {wish.node}; try again later")


def _plan(look: ResourceLook, wish: AdvertisementWish) -> AdvertisementPlan:
    found = look.find(wish.name)
    if found is not None and found.state in _KUBELETS:
        raise RemovalRefused(
            f"{wish.name} on node {wish.node} is counted by the kubelet ({found.reason}), which would restore "
            "its own number with its next sync; change its plugin, or stop it and remove the resource first"
        )
    if found is not None and found.state is ResourceState.UNKNOWN:
        raise RemovalRefused(
            f"cannot tell whether a plugin advertises {wish.name} on node {wish.node} ({found.reason}); look "
            "again later, or remove it first: if it comes back, a plugin advertises it"
        )
    return AdvertisementPlan(found, patch_for(look.document(), {wish.name: wish.count}))
