"""Mock devices: devices that do not exist, with faults on demand."""
