"""The command line: one module per command group, thin. Nothing imports this room."""
