"""The placer: keeps every container on the CPUs that were decided for it. No CRI and no NRI here.

The CRI proxy or the NRI plugin announces events to `placer.Placer`; `placements` turns each into a step; `keeper`
takes the steps and stores them; `upkeep` writes to running containers and audits every minute. `part.PlacementPart`
joins them for a process.
"""
