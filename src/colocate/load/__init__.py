"""Decisions about load: which node has really room for a pod, and why. Pure: no I/O, no clock of its own.

Facts go into a `Table` (nodes, samples, pods seen bound); `decide` answers a scheduler's question from it, with
what `explain` needs to tell why. `Snapshot` is all of that as data, from which the same answers follow
anywhere. `heat` and `taint_plan` say the same with taints, `weights` what a kube-scheduler must be told.
What is measured, and how a scheduler is spoken to, is not done here.
"""
