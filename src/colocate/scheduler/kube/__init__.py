"""kube-scheduler's own configuration: written for ours, read for its extenders and for the seed's plugins."""
