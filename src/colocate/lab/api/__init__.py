"""The embedded cluster's API server: objects, watches, patches, tables and RBAC, over HTTP, for kubectl.

A stand-in: it serves what the project and kubectl need, and each module says what it leaves out. Nothing here
schedules or runs pods.
"""
