"""Where the kubelet keeps its sockets and its checkpoint."""

import os
from pathlib import Path

import msgspec

DEFAULT_ROOT = Path("/var/lib/kubelet")
ROOT_VARIABLE = "COLOCATE_KUBELET_ROOT"


class KubeletPaths(msgspec.Struct, frozen=True):
    """The kubelet's folder and the paths in it."""

    root: Path = DEFAULT_ROOT
    """The kubelet's `--root-dir`."""

    @classmethod
    def from_environment(cls) -> "KubeletPaths":
        """The kubelet's usual folder, or the one that COLOCATE_KUBELET_ROOT names."""
        return cls(Path(os.environ.get(ROOT_VARIABLE) or DEFAULT_ROOT))

    @property
    def device_plugins(self) -> Path:
        """The folder for sockets of plugins that call Register."""
        return self.root / "device-plugins"

    @property
    def kubelet_socket(self) -> Path:
        """Where plugins call Register."""
        return self.device_plugins / "kubelet.sock"

    @property
    def checkpoint(self) -> Path:
        """The kubelet's own record of who holds which device."""
        return self.device_plugins / "kubelet_internal_checkpoint"

    @property
    def plugins_registry(self) -> Path:
        """The folder that the kubelet's plugin watcher searches for sockets."""
        return self.root / "plugins_registry"

    @property
    def boot_id(self) -> Path:
        """The boot id of an embedded kubelet's node. Other kubelets have no such file and report the kernel's boot
        id."""
        return self.root / "boot_id"

    @property
    def pod_resources_socket(self) -> Path:
        """The socket of the kubelet's podresources service."""
        return self.root / "pod-resources" / "kubelet.sock"
