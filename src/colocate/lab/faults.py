"""What can go wrong with a kubelet, as knobs."""

import msgspec


class KubeletFaults(msgspec.Struct):
    """Faults of the embedded kubelet, switched on and off by tests and demos while it runs."""

    register_delay: float = 0
    """Seconds before Register is answered."""

    register_refusal: str = ""
    """An error with which Register is refused."""

    list_delay: float = 0
    """Seconds before each device list is taken in."""

    restart_in_allocate: bool = False
    """Restart, once, while the next Allocate is in flight."""

    podresources_refusal: str = ""
    """An error with which podresources answers every call."""
