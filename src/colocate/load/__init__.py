"""Decisions about load: which node has really room for a pod, and why. Pure: no I/O, no clock of its own.

Facts go into a `Table`: nodes, samples, pods seen bound (`reading` makes facts of API objects). `sift` and `decide`
answer a scheduler's two questions from it; `explain` tells why, from the small record that `decide` leaves and
`History` keeps. `snapshot` is all facts as data, from which the same answers follow anywhere. `heat` and
`taint_plan` say the same with taints, `weights` what a kube-scheduler must be told. Nothing is measured here, and
no scheduler is spoken to.
"""

from colocate.load.comparison import Comparison, compare
from colocate.load.decision import Answer, Candidates, Decision, decide, refused_everywhere
from colocate.load.explanation import Explanation, explain, explain_all, explain_node
from colocate.load.filter import Refusal, Sifted, sift
from colocate.load.history import History, Kept
from colocate.load.settings import Mix, PolicyName, Settings, mix
from colocate.load.table import Table
from colocate.load.top import NodeRow, top

__all__ = [
    "Answer",
    "Candidates",
    "Comparison",
    "Decision",
    "Explanation",
    "History",
    "Kept",
    "Mix",
    "NodeRow",
    "PolicyName",
    "Refusal",
    "Settings",
    "Sifted",
    "Table",
    "compare",
    "decide",
    "explain",
    "explain_all",
    "explain_node",
    "mix",
    "refused_everywhere",
    "sift",
    "top",
]
