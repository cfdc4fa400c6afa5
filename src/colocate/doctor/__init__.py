"""`colocate doctor`: every check that this project knows of, on this node and against the cluster.

A check is one function with `@check(...)` in a module that `examination` names: it takes a `Patient` and yields
what it found, each a verdict with a reason and, unless all is well, a remedy. Checks look; they change nothing.
"""
