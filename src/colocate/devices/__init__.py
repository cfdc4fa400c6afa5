"""Decisions about devices: what the records say about them, what is stale or inconsistent, what a repaired
checkpoint contains. No I/O and no clock here.
"""
