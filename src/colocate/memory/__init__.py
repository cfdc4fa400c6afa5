"""Decisions about memory: how many blocks a node can sell, and how it gets them back. No I/O and no clock here.

`decide` is the whole of it: a state, facts, settings and the time in; the next state and a plan out, with reasons.
"""
