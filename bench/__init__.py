"""What Colocate costs, as ratios to something plain that is measured in the same run. `make bench` runs all.

A bench is a file here, named after what it measures, that has `RATIOS` (each with its threshold) and a
function `bench()` that returns a row for every one of them. It runs in a process of its own.
"""
