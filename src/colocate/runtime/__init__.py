"""The edge to the container runtime: the CRI proxy's relay and the NRI plugin. No decision is made here.

Both ways in tell the same `ContainerEvents` what happens to sandboxes and containers, and carry out what it answers.
"""
