"""Nodes of the embedded cluster: this machine with its embedded kubelet, and simulated nodes."""
