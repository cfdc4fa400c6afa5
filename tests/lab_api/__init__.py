"""Tests of the embedded API server."""
