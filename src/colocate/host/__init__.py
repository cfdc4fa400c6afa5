"""The edge to the machine: files, control groups, memory and where its pages lie. Nothing is decided here."""
