"""What an operator decides about CPUs: reserved ones, named pools, who may wish for what; checked for a machine."""

from enum import StrEnum

import msgspec

from colocate.errors import UserError
from colocate.model.cpuset import EMPTY, CpuSet


class BurstLevel(StrEnum):
    """How far a container may spread whose limit is above its request."""

    CCX = "ccx"
    """No further than the pool that its request fits."""
    NUMA = "numa"
    NODE = "node"
    """The whole machine."""


class NamedPool(msgspec.Struct, frozen=True, kw_only=True):
    """CPUs that only the containers of some namespaces run on: named one by one, or so many of the operator's."""

    name: str
    cpus: CpuSet = EMPTY
    size: int = 0
    """How many CPUs, where they are not named."""
    namespaces: tuple[str, ...]


class CpuSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is configured."""

    reserved: CpuSet = EMPTY
    """CPUs for the system and the namespaces below."""
    reserved_size: int = 0
    """How many thousandths of a CPU are reserved, where they are not named; rounded up to whole CPUs."""
    reserved_namespaces: tuple[str, ...] = ("kube-system",)
    pools: tuple[NamedPool, ...] = ()
    wish_namespaces: tuple[str, ...] = ()
    """Namespaces whose pods may wish for exclusive or isolated CPUs, strict placement, or to leave their named
    pool."""
    exclusive_guaranteed: bool = True
    """Whether guaranteed containers of whole CPUs get them alone without a wish."""
    burst: BurstLevel = BurstLevel.CCX
    spread: bool = False
    """Take the roomiest pool, not the one that fits best, where a pod does not say."""
    pin_memory: bool = True

    def pool_of(self, namespace: str) -> str:
        """The named pool of a namespace; empty where it has none."""
        return next((pool.name for pool in self.pools if namespace in pool.namespaces), "")

    def may_leave(self, namespace: str) -> bool:
        """Whether its pods may leave their named pool by a wish."""
        return namespace in self.wish_namespaces or namespace in self.reserved_namespaces


def check_settings(settings: CpuSettings, online: CpuSet) -> None:
    """UserError where the settings contradict each other or the machine."""
    if settings.reserved and settings.reserved_size:
        raise UserError("reserved CPUs are given as a list and as a size; give one of them")
    if settings.reserved_size < 0:
        raise UserError(f"{settings.reserved_size}m CPUs cannot be reserved; give 0 or more")
    seen: dict[str, str] = {}
    taken = settings.reserved
    needed = len(taken) + -(-settings.reserved_size // 1000)
    for pool in settings.pools:
        if not pool.name:
            raise UserError("a pool has no name; give it one")
        if bool(pool.cpus) == bool(pool.size) or pool.size < 0:
            raise UserError(f"pool {pool.name}: give its CPUs or a size above 0, one of them")
        if not pool.cpus.isdisjoint(taken):
            raise UserError(
                f"pool {pool.name}: CPUs {pool.cpus & taken} are reserved or in another pool; take them out of one"
            )
        taken |= pool.cpus
        needed += len(pool.cpus) + pool.size
        for namespace in pool.namespaces:
            if namespace in seen:
                raise UserError(
                    f"namespace {namespace} has two pools, {seen[namespace]} and {pool.name}; leave it in one"
                )
            seen[namespace] = pool.name
    names = [pool.name for pool in settings.pools]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"two pools have the name {twice[0]}; rename one")
    if missing := taken - online:
        raise UserError(
            f"CPUs {missing} are reserved or in a pool, and this machine has CPUs {online} online"
        )
    if needed >= len(online):
        raise UserError(
            f"{needed} CPUs are reserved or in pools, of {len(online)} online; leave at least one for all others"
        )
