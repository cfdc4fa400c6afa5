"""Puts the CRI proxy between a node's kubelet and its runtime, and takes it out again.

What would be done is a list of `steps`, made from what is found; it is shown, or carried out.
"""
