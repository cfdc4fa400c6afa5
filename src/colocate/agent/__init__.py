"""The processes on a node: agent, CRI proxy and NRI plugin. They join the capabilities and decide nothing."""
