"""How the SDK behaves where the kubelet leaves a choice."""

from enum import StrEnum

import msgspec

from colocate.kubelet.paths import KubeletPaths

MESSAGE_LIMIT = 4 << 20
"""The largest message that a kubelet receives, in bytes; a longer list of devices is refused."""


class Registration(StrEnum):
    """The two ways in which a kubelet learns of a plugin."""

    REGISTER = "register"
    """The plugin calls Register on kubelet.sock, and again whenever that socket is replaced."""
    WATCHER = "watcher"
    """The plugin puts a socket into plugins_registry, and the kubelet asks it."""


class OnStop(StrEnum):
    """What happens to the devices when the plugin stops."""

    KEEP = "keep"
    """The kubelet keeps the list for its grace period of five minutes: right for updates and restarts."""
    WITHDRAW = "withdraw"
    """The kubelet first gets a list without them; ids that pods still hold stay, Unhealthy."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the device-plugin SDK; the defaults suit a production node."""

    paths: KubeletPaths = KubeletPaths()
    """The kubelet's folder."""

    registration: Registration = Registration.REGISTER
    """How the kubelet learns of the plugin."""

    on_stop: OnStop = OnStop.KEEP
    """What happens to the devices when the plugin stops."""

    allocate_timeout: float = 10.0
    """Seconds that `allocate` and `prefer` may take. The kubelet itself waits forever, and admits no other pod
    meanwhile."""

    prestart_timeout: float = 25.0
    """Seconds that `prestart` may take; the kubelet gives up after 30."""

    linger: float = 30.0
    """Seconds that a withdrawn id stays in the list, Unhealthy, before it is dropped. Longer than an
    Allocate may take: an id that vanishes under an Allocate in flight crashes kubelets from 1.34."""

    holders_interval: float = 10.0
    """Seconds between two checks of which pods hold the ids that are leaving."""

    stream_timeout: float = 30.0
    """Seconds in which the kubelet must ask for the list after a registration; otherwise the plugin registers
    again."""

    first_retry: float = 0.2
    """Seconds before a failed attempt (to open, list or register) is repeated; doubled each time."""

    last_retry: float = 10.0
    """The longest pause between two attempts, in seconds."""

    stop_grace: float = 3.0
    """Seconds that calls in flight get to end when the plugin stops."""

    close_timeout: float = 10.0
    """Seconds that `close` may take; after that the process ends without it."""
