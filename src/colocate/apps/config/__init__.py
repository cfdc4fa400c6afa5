"""The agent's configuration: its fields, how files and overrides are read, and what is said of mistakes."""
