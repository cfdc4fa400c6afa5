"""The memory part of the agent: observes a node, lets `colocate.memory` decide, and carries the plan out."""
