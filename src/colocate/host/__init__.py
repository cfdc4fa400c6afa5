"""The edge to the machine: files, cgroups. Nothing is decided here."""
