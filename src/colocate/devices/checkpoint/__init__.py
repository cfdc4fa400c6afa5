"""Commands about checkpoints: read the file, compare it with other records, repair it."""
