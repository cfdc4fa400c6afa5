"""Decisions about load: which node really has room for a pod, and why. Pure: no I/O, no clock of its own.

Facts go into a `LoadTable`: nodes, samples, bound pods (`api_objects` reads them from API objects). `sift` and
`decide` answer a scheduler's two questions. `explain` says why, from the small record that `decide` leaves and
`History` keeps. `snapshot` turns all facts into data, from which the same answers follow anywhere. `heat` turns
loads into levels for taints, `weights` says how heavily a kube-scheduler must weigh the extender. Nothing is
measured here, and no scheduler is called.

Other packages import from here.
"""

from colocate.load.api_objects import LoadNode, LoadNodeStatus, LoadPod, bound_pod, node_facts, pod_facts
from colocate.load.comparison import PolicyComparison, compare
from colocate.load.decision import (
    Candidates,
    PackedNames,
    ScoreAnswer,
    decide,
    refused_everywhere,
)
from colocate.load.demand import demand as stated_demand
from colocate.load.explanation import (
    Explanation,
    NodeReason,
    PolicyReason,
    explain,
    explain_all,
    explain_node,
)
from colocate.load.filter import Refusal, Sifted, sift
from colocate.load.heat import (
    Heat,
    HeatSettings,
    TaintChange,
    TaintPlan,
    heats,
    held,
    plan_taints,
    pressures,
    rounded_down,
)
from colocate.load.history import History, KeptDecision
from colocate.load.node_rows import NodeRow, ResourceRow, top
from colocate.load.policies import ScorePart
from colocate.load.recording import (
    MOST_RECORDED,
    LoadRecorder,
    LoadRecording,
    decode_recording,
    encode_recording,
    hashing,
)
from colocate.load.settings import (
    BalancedSettings,
    EstimateSettings,
    JudgingSettings,
    LedgerSettings,
    LoadSettings,
    MissingFilter,
    Mix,
    PackingSettings,
    PolicyName,
    Staleness,
    mix,
)
from colocate.load.snapshot import LoadSnapshot
from colocate.load.table import LoadTable
from colocate.load.terms import Freshness
from colocate.load.tolerations import ClosedNode, Toleration, open_to
from colocate.load.weights import (
    DEFAULT_PLUGINS,
    DEFAULT_POINTS,
    ExtenderWeight,
    ScorePlugin,
    advised_weight,
    least_weight,
)

__all__ = [
    "DEFAULT_PLUGINS",
    "DEFAULT_POINTS",
    "MOST_RECORDED",
    "BalancedSettings",
    "Candidates",
    "ClosedNode",
    "EstimateSettings",
    "Explanation",
    "ExtenderWeight",
    "Freshness",
    "Heat",
    "HeatSettings",
    "History",
    "JudgingSettings",
    "KeptDecision",
    "LedgerSettings",
    "LoadNode",
    "LoadNodeStatus",
    "LoadPod",
    "LoadRecorder",
    "LoadRecording",
    "LoadSettings",
    "LoadSnapshot",
    "LoadTable",
    "MissingFilter",
    "Mix",
    "NodeReason",
    "NodeRow",
    "PackedNames",
    "PackingSettings",
    "PolicyComparison",
    "PolicyName",
    "PolicyReason",
    "Refusal",
    "ResourceRow",
    "ScoreAnswer",
    "ScorePart",
    "ScorePlugin",
    "Sifted",
    "Staleness",
    "TaintChange",
    "TaintPlan",
    "Toleration",
    "advised_weight",
    "bound_pod",
    "compare",
    "decide",
    "decode_recording",
    "encode_recording",
    "explain",
    "explain_all",
    "explain_node",
    "hashing",
    "heats",
    "held",
    "least_weight",
    "mix",
    "node_facts",
    "open_to",
    "plan_taints",
    "pod_facts",
    "pressures",
    "refused_everywhere",
    "rounded_down",
    "sift",
    "stated_demand",
    "top",
]
