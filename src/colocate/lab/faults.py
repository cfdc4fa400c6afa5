"""Faults of the embedded kubelet that can be switched on."""

import msgspec


class KubeletFaults(msgspec.Struct):
    """Faults of the embedded kubelet, switched on and off by tests and demos while it runs."""

    register_delay: float = 0
    """Seconds before Register is answered."""

    register_refusal: str = ""
    """The error with which Register is refused; empty accepts it."""

    list_delay: float = 0
    """Seconds before each device list is processed."""

    restart_in_allocate: bool = False
    """Restart the kubelet once, during the next Allocate."""

    podresources_refusal: str = ""
    """The error with which podresources answers every call; empty means no error."""
