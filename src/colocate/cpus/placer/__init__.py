"""The placer: keeps every container on the CPUs that it should have, whichever way the runtime tells of it.

A way in (CRI proxy or NRI plugin) tells `placer.Placer` what happens; `book` decides, `store` remembers, `upkeep`
looks every minute whether it is so. `part.PlacementPart` joins them for a process. No CRI and no NRI here.
"""
