"""The embedded cluster: API server, scheduler and nodes in one process, to try and test things without a cluster.

Never the production path."""
