"""Decisions about devices: what is stale or inconsistent, and what a mended record looks like. No I/O here."""
