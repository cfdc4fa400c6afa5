"""Configuration files: how they and overrides are read, and how mistakes are explained. Knows no capability."""
