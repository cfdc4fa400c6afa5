"""The name that this machine has in the cluster, where nobody says it."""

import os
from collections.abc import Mapping

VARIABLE = "NODE_NAME"
"""Commonly set from the pod's spec.nodeName, through the downward API."""


def this_node(environ: Mapping[str, str] = os.environ) -> str:
    """What NODE_NAME says, or the host's name as kubelets use it."""
    return environ.get(VARIABLE) or os.uname().nodename.lower()
