"""Chooses the GPU of every pod that asks for one: the extender's second half, and the only one that binds."""
