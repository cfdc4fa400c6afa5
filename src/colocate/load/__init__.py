"""Decisions about load: which node has really room for a pod, and why. Pure: no I/O, no clock of its own."""
