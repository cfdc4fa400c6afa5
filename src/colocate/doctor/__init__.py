"""`colocate doctor`: every check of this project, on this node and against the cluster.

A check is one function with `@check(...)` in a module that `examination` names: it takes a `Patient` and yields
results, each a verdict with a reason and, for WARN and BAD, a remedy. Checks only read.
"""
