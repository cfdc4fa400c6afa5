"""The edge to the container runtime: the CRI proxy's relay and the NRI plugin. No decision is made here.

Both announce what happens to sandboxes and containers to one `ContainerEvents`, and carry out its answers.
"""
