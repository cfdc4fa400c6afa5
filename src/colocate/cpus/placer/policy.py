"""What an operator decides about placement, and what of it this machine can have. Pure."""

import msgspec

from colocate.cpus import CpuAllocator, CpuSettings
from colocate.cpus.placer.requests import WishDefaults
from colocate.errors import UserError
from colocate.model.cpu_topology import CpuTopology
from colocate.model.cpuset import EMPTY, union


class PlacementPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator decides."""

    active: bool = True
    """Whether containers are placed at all (policy topology, and not none)."""
    settings: CpuSettings = CpuSettings()
    defaults: WishDefaults = WishDefaults()


def fitted(settings: CpuSettings, topology: CpuTopology) -> tuple[CpuSettings, tuple[str, ...]]:
    """Settings as far as this machine can have them, and what it cannot: nobody fails to start for a missing CPU."""
    doubts = []
    online = topology.online
    missing = union([settings.reserved, *(pool.cpus for pool in settings.pools)]) - online
    if missing:
        doubts.append(f"CPUs {missing} are reserved or in a pool, and are not online; they are left out.")
        pools = tuple(
            msgspec.structs.replace(pool, cpus=pool.cpus & online)
            for pool in settings.pools
            if pool.size or pool.cpus & online
        )
        settings = msgspec.structs.replace(settings, reserved=settings.reserved & online, pools=pools)
    try:
        CpuAllocator(topology, settings)
    except UserError as error:
        doubts.append(f"None is reserved, and there are no pools: {error}.")
        settings = msgspec.structs.replace(settings, reserved=EMPTY, reserved_size=0, pools=())
    return settings, tuple(doubts)
