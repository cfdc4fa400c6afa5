"""How the SDK behaves where the kubelet leaves a choice."""

from enum import StrEnum

import msgspec

from colocate.kubelet.paths import KubeletPaths

MESSAGE_LIMIT = 4 << 20
"""What a kubelet receives in one message, in bytes: a longer list of devices is refused."""


class Registration(StrEnum):
    """The two ways in which a kubelet learns of a plugin."""

    REGISTER = "register"
    """The plugin calls Register on kubelet.sock, and again whenever that socket is replaced."""
    WATCHER = "watcher"
    """The plugin puts a socket into plugins_registry, and the kubelet asks it."""


class OnStop(StrEnum):
    """What becomes of the devices when the plugin stops."""

    KEEP = "keep"
    """The kubelet keeps the list for its grace of five minutes: right for updates and restarts."""
    WITHDRAW = "withdraw"
    """The kubelet is first given a list without them; ids that pods still hold stay, Unhealthy."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the device-plugin SDK; the defaults suit a production node."""

    paths: KubeletPaths = KubeletPaths()
    """Where the kubelet is."""

    registration: Registration = Registration.REGISTER
    """How the kubelet learns of the plugin."""

    on_stop: OnStop = OnStop.KEEP
    """What becomes of the devices when the plugin stops."""

    allocate_timeout: float = 10.0
    """Seconds that `allocate` and `prefer` may take. The kubelet itself waits for ever, and admits no
    other pod meanwhile."""

    prestart_timeout: float = 25.0
    """Seconds that `prestart` may take; the kubelet gives up after 30."""

    linger: float = 30.0
    """Seconds that a withdrawn id stays in the list, Unhealthy, before it is dropped. Longer than an
    Allocate may take: an id that vanishes under an Allocate in flight crashes kubelets from 1.34."""

    holders_interval: float = 10.0
    """Seconds between two looks at who holds the ids that are on their way out."""

    stream_timeout: float = 30.0
    """Seconds within which the kubelet must ask for the list after a registration; else register again."""

    first_retry: float = 0.2
    """Seconds before a failed attempt (to open, to list, to register) is made again; doubled each time."""

    last_retry: float = 10.0
    """Seconds between two attempts, at most."""

    stop_grace: float = 3.0
    """Seconds that calls in flight get to end when the plugin stops."""

    close_timeout: float = 10.0
    """Seconds that `close` may take; the process ends without it then."""
