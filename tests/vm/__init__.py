"""Tests in a throw-away VM with a kernel of its own: cgroup v2, NUMA nodes, L3 groups, memory like CXL.

On this machine nothing is changed: the VM sees its files read-only under an overlay that lives in the VM's
memory. docs/vm-tests.md tells how to write such a test.
"""
