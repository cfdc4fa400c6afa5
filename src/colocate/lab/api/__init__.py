"""The embedded cluster's API server: objects, watches, patches, tables and RBAC, over HTTP, for kubectl.

A stand-in: it keeps what the project and kubectl lean on, and each module says what it leaves out.
Nothing here decides where a pod runs or runs it.
"""
