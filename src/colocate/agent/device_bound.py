"""The bound on devices of an agent, over all its plugins: mock devices, blocks of memory, and slices of GPUs.

It is asked before every registration, when GPUs come, and when the configuration changes. A kubelet from 1.36 on is
not offered more than it bears; an older one is, with a warning. Which kubelet a node has is asked of its status, and
only where it matters. A kubelet that has just started counts once it has written that status itself.
"""

import os
from collections.abc import Awaitable, Callable, Sequence

from colocate import telemetry
from colocate.agent.schema import Config
from colocate.devices.mock.section import MockResource
from colocate.errors import Unavailable, UserError
from colocate.gpus import Dialect, gpu_offer
from colocate.kubelet.watch import identity
from colocate.memory.agent.section import MemorySection
from colocate.model.device_cost import (
    DEAR_FROM,
    DeviceCost,
    DeviceOffer,
    NodeKubelet,
    cost_of,
    why_too_dear,
)
from colocate.model.figures import amount
from colocate.model.gpu import GpuInventory
from colocate.telemetry import Event

AskKubelet = Callable[[], Awaitable[NodeKubelet | None]]
"""What the node's status says of its kubelet; None where there is no such node, Unavailable where it is silent."""


class DeviceBound:
    """Whether the kubelet of this node can bear all devices that one agent offers."""

    def __init__(self, config: Config, dialects: Sequence[Dialect] = ()) -> None:
        self.warning = ""
        """What the kubelet does not bear, or a newer one would not; empty where there is nothing to fear."""
        self.ask: AskKubelet | None = None
        """None in an agent that has no cluster to ask."""
        self.dialects = dialects
        self._socket = config.kubelet.settings().paths.kubelet_socket
        self._memory = config.memory
        self._others = _other_offers(config.mock.resources, config.memory)
        self._gpus = GpuInventory()
        """The GPUs whose slices are offered."""
        self._warned = False

    @property
    def cost(self) -> DeviceCost:
        """What all devices that are offered cost."""
        return cost_of(self._offers(self._others, self._gpus))

    async def check(self) -> None:
        """UserError where the kubelet cannot bear what is offered; Unavailable while its version is not known."""
        self.warning = await self._judge(self._offers(self._others, self._gpus))

    async def admit(self, inventory: GpuInventory) -> None:
        """Offer the slices of these GPUs from now on; UserError or Unavailable as `check`, and nothing changes.

        Fewer than before are always taken.
        """
        offers = self._offers(self._others, inventory)
        if cost_of(offers).devices > self.cost.devices:
            self.warning = await self._judge(offers)
        self._gpus = inventory

    async def judge(self, config: Config) -> None:
        """UserError where another configuration would be too much. Nothing changes before `take`."""
        # The size of blocks waits for the next start.
        others = _other_offers(config.mock.resources, self._memory)
        try:
            if cost_of(others).devices > cost_of(self._others).devices:
                await self._judge(self._offers(others, self._gpus))
        except Unavailable as error:
            raise UserError(str(error)) from error

    def take(self, config: Config) -> None:
        """Offer what another configuration says, which was judged before; `check` tells its warning."""
        self._others = _other_offers(config.mock.resources, self._memory)

    def _offers(self, others: Sequence[DeviceOffer], inventory: GpuInventory) -> Sequence[DeviceOffer]:
        beside = cost_of(others).devices
        gpus = [gpu_offer(inventory.shared, self.dialects, beside)] if inventory.shared else []
        return [*others, *gpus]

    async def _judge(self, offers: Sequence[DeviceOffer]) -> str:
        """What an older kubelet bears and a newer one would not."""
        reason = why_too_dear(offers)
        if not reason:
            return ""
        version = "unknown"
        if self.ask is not None:
            kubelet = await self._heard(self.ask)
            if kubelet.version is None or kubelet.version >= DEAR_FROM:
                raise UserError(reason)
            version = f"{kubelet.version[0]}.{kubelet.version[1]}"
        if not self._warned:
            self._warned = True
            log = telemetry.logger(kubelet=version)
            if self.dialects:
                log.warning(Event.GPU_DEVICES_DEAR, reason=reason)
            else:
                log.warning(Event.CONFIG_DOUBTFUL, reason=reason)
        return f"before this node's kubelet becomes 1.36 or newer: {reason}"

    async def _heard(self, ask: AskKubelet) -> NodeKubelet:
        """By the kubelet that is there now: the status of a node stays as it was while a kubelet is replaced."""
        running = identity(self._socket)
        found = await ask()
        if found is None:
            raise Unavailable("there is no such node, so it is not known how many devices its kubelet bears")
        if running is not None and found.heartbeat < running[1] // 10**9:
            raise Unavailable(
                "the kubelet has started and has not written its version into the node's status yet; the version "
                "decides how many devices it bears"
            )
        return found


def _other_offers(mocks: Sequence[MockResource], memory: MemorySection) -> Sequence[DeviceOffer]:
    """What the agent may offer beside slices of GPUs: mock devices, and all memory as blocks."""
    offers = []
    for resource in mocks:
        number = resource.count or len(resource.ids or ())
        remedy = f"lower the count of {resource.name} in mock.resources"
        offers.append(DeviceOffer(resource.name, DeviceCost(number, number), remedy))
    if memory.enabled and not memory.dry_run:
        size = memory.block_size
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        number = min(whole // size, memory.settings().most_blocks)
        what = f"{memory.resource} in blocks of {amount(size)}"
        remedy = "set a larger memory.blockSize in the whole cluster"
        offers.append(DeviceOffer(what, DeviceCost(number, number), remedy))
    return offers
