"""Decisions about devices: what the sources of truth say of them, what is stale or inconsistent.

Pure: no I/O, no clock.
"""
