"""Colocate puts more work on every Kubernetes node, safely."""

import os

__version__ = "0.1.0"

# gRPC's C core writes to standard error by itself, even about connections that end as they should; it reads
# this when it is first imported. What matters is logged by us.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

# A process here is forked only to become another program. gRPC's support of forks starts its threads in the child
# before it has, where they now and then crash it.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
