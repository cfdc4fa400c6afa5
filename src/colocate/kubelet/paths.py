"""Where the kubelet keeps its sockets and its checkpoint."""

import os
from pathlib import Path

import msgspec

DEFAULT_ROOT = Path("/var/lib/kubelet")
ROOT_VARIABLE = "COLOCATE_KUBELET_ROOT"


class KubeletPaths(msgspec.Struct, frozen=True):
    """The kubelet's folder and what is where in it."""

    root: Path = DEFAULT_ROOT

    @classmethod
    def from_environment(cls) -> "KubeletPaths":
        """The kubelet's usual folder, or the one that COLOCATE_KUBELET_ROOT names."""
        return cls(Path(os.environ.get(ROOT_VARIABLE) or DEFAULT_ROOT))

    @property
    def device_plugins(self) -> Path:
        return self.root / "device-plugins"

    @property
    def kubelet_socket(self) -> Path:
        return self.device_plugins / "kubelet.sock"

    @property
    def checkpoint(self) -> Path:
        return self.device_plugins / "kubelet_internal_checkpoint"

    @property
    def plugins_registry(self) -> Path:
        return self.root / "plugins_registry"

    @property
    def boot_id(self) -> Path:
        """Left by an embedded kubelet alone: the boot id of its node. Any other kubelet reports the kernel's."""
        return self.root / "boot_id"

    @property
    def pod_resources_socket(self) -> Path:
        return self.root / "pod-resources" / "kubelet.sock"
