"""Tests of the client side, against the embedded API server over real HTTP."""
