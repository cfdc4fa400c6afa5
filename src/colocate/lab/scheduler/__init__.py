"""The embedded cluster's scheduler: chooses a node for each pod, on the store of the API server.

A stand-in for kube-scheduler, in the same process as the API server. It has the filters and scores that the project
and its examples need, extender calls, priorities, preemption, and kube-scheduler's messages. Not implemented:
affinity and anti-affinity between pods, topology spread (the default spreading of replicas, too),
volumes, host ports, image locality, resource claims, permit and reserve plugins, pod groups, leader election. Each
module says what else it simplifies.
"""
