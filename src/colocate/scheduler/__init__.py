"""`colocate scheduler`: the extender that kube-scheduler asks where a pod should go, and what belongs to it."""
