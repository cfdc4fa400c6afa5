"""How a node is judged for a pod: one module per policy, each a function of a node's terms and a pod's demand.

Every policy gives integers from 0 (avoid) to 100 (prefer). All but the two of `real_usage` judge a node by
itself, so that it gets the same score whatever the other candidates are. No policy knows the time or the table.
"""

from colocate.load.policies.balanced import Balanced
from colocate.load.policies.load_aware import LoadAware
from colocate.load.policies.overcommitment import LowRiskOvercommitment
from colocate.load.policies.oversell import Oversell
from colocate.load.policies.packing import TargetLoadPacking
from colocate.load.policies.real_usage import CpuRealUsage, MemRealUsage, RealUsage, min_max
from colocate.load.policies.risk_balancing import LoadVariationRiskBalancing
from colocate.load.settings import LoadSettings, PolicyName
from colocate.load.terms import NodePolicy, ScorePart

__all__ = ["NodePolicy", "RealUsage", "ScorePart", "min_max", "policy"]


def policy(name: PolicyName, settings: LoadSettings) -> NodePolicy | RealUsage:
    """The policy of that name."""
    made: NodePolicy | RealUsage
    match name:
        case PolicyName.BALANCED:
            made = Balanced(settings.balanced)
        case PolicyName.MEM_REAL_USAGE:
            made = MemRealUsage()
        case PolicyName.CPU_REAL_USAGE:
            made = CpuRealUsage()
        case PolicyName.TARGET_LOAD_PACKING:
            made = TargetLoadPacking(settings.packing)
        case PolicyName.LOAD_VARIATION_RISK_BALANCING:
            made = LoadVariationRiskBalancing(settings.risk_balancing)
        case PolicyName.LOW_RISK_OVERCOMMITMENT:
            made = LowRiskOvercommitment(settings.overcommitment)
        case PolicyName.LOAD_AWARE:
            made = LoadAware(settings.load_aware)
        case PolicyName.OVERSELL:
            made = Oversell(settings.oversell)
    return made
