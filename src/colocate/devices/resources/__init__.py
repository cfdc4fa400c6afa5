"""Extended resources of a cluster: list them, advertise one by hand, remove one that stays."""
