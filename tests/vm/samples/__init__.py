"""Tests that go wrong in a VM on purpose; tests/vm/test_harness.py runs them and reads how they are reported."""
