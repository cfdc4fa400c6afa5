"""Which GPU of which node: policies over a whole cluster at once. Pure, and in numpy (the extra `packing`).

A room of its own inside `gpus`, so that an agent, which has one node, loads no numpy. The scheduler and the replay
enter here: the very code that schedules also replays.
"""

from colocate.gpus.packing.demand import GpuDemand, booking_of, demand_of
from colocate.gpus.packing.fleet import Fleet, GpuState, NodeState, PackRequest, kinds_of, suits
from colocate.gpus.packing.mix import LearnedMix, Mix, mix_of
from colocate.gpus.packing.packer import Packer, Ranking
from colocate.gpus.packing.policies import PackingPolicy
from colocate.gpus.read_keys import MODELS

__all__ = [
    "MODELS",
    "Fleet",
    "GpuDemand",
    "GpuState",
    "LearnedMix",
    "Mix",
    "NodeState",
    "PackRequest",
    "Packer",
    "PackingPolicy",
    "Ranking",
    "booking_of",
    "demand_of",
    "kinds_of",
    "mix_of",
    "suits",
]
