"""Decisions about devices: what the sources of truth say of them, what is stale or inconsistent, what a mended
record looks like. No I/O and no clock here.
"""
