"""Installs the CRI proxy between a node's kubelet and its runtime, and uninstalls it.

`kubelet_change` plans a list of `steps` from the node's files; the list is shown or carried out.
"""
