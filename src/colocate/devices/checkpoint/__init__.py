"""Checkpoints in the hands of an operator: the file, the records to hold it against, the mended file."""
