"""The embedded cluster's scheduler: which node each pod goes to, over the store of the API server.

A stand-in for kube-scheduler, in the same process as the API server. It has the filters and scores that the
project and its examples lean on, the extender calls, priorities and preemption, and kube-scheduler's words.
Left out: affinity and anti-affinity between pods, topology spread (the default spreading of replicas, too),
volumes, host ports, image locality, resource claims, permit and reserve plugins, pod groups, several
schedulers that elect a leader. Each module says what else it simplifies.
"""
