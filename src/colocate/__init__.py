"""Colocate puts more work on every Kubernetes node, safely."""

__version__ = "0.1.0"
