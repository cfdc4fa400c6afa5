"""What a VM boots: Debian's kernel, and an initrd that holds what the kernel needs to reach this machine's files.

The kernel is unpacked once into .components; without that every boot would spend seconds on it. The initrd is
small and made for each boot, since it also carries the order: what the VM is to run.
"""

import compileall
import lzma
import os
import shlex
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tests.support import components

REPO = Path(__file__).parents[2]
DISK = Path("/disk")
"""Where a VM mounts its disk, if it has one."""

_CACHE = components.FOLDER / "vm"
_BOOT = Path(__file__).parent / "boot"
_XZ = b"\xfd7zXZ\0"
_ELF = b"\x7fELF"

_unpacking = threading.Lock()
"""VMs are started by threads of one process, and each wants the kernel."""

# What it takes to mount the host's files. All else is loaded from there.
_FIRST_MODULES = ("virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay")


class Order(msgspec.Struct, frozen=True):
    """What a VM is to run, once it is up."""

    command: Sequence[str]
    environment: Mapping[str, str] = {}
    interactive: bool = False
    """Whether the command has the console as its terminal."""
    disk: bool = False

    def settings(self, modules: Path) -> str:
        """What tests/vm/boot/setup reads."""
        values = {
            "folder": str(REPO),
            "modules": "" if modules.parent == Path("/lib") else str(modules),
            "disk": str(DISK) if self.disk else "",
            "interactive": "yes" if self.interactive else "",
        }
        return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items()) + self._exports()

    def _exports(self) -> str:
        environment = {
            "PATH": f"{os.environ['PATH']}:{components.FOLDER}/usr/bin:{components.FOLDER}/usr/sbin:/usr/sbin:/sbin",
            "HOME": "/root",
            **self.environment,
        }
        return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())


class Kernel:
    """A kernel of Debian's and its modules."""

    def __init__(self, vmlinuz: Path) -> None:
        self._vmlinuz = vmlinuz
        self._version = vmlinuz.name.removeprefix("vmlinuz-")
        self.modules = vmlinuz.parent.parent / "lib" / "modules"

    def unpacked(self) -> Path:
        """The kernel as an ELF file, which QEMU starts at once."""
        vmlinux = _CACHE / f"vmlinux-{self._version}"
        with _unpacking:
            if not vmlinux.exists():
                packed = self._vmlinuz.read_bytes()
                unpacked = lzma.LZMADecompressor().decompress(packed[packed.index(_XZ) :])
                assert unpacked.startswith(_ELF), f"{self._vmlinuz} holds no ELF file: is it Debian's?"
                _CACHE.mkdir(parents=True, exist_ok=True)
                partial = vmlinux.with_suffix(f".{os.getpid()}")
                partial.write_bytes(unpacked)
                partial.replace(vmlinux)
        return vmlinux

    def first_modules(self) -> list[Path]:
        """In the order in which they can be loaded."""
        folder = self.modules / self._version
        needs = dependencies((folder / "modules.dep").read_text())
        return [folder / path for path in load_order(needs, _FIRST_MODULES)]


def dependencies(text: str) -> dict[str, list[str]]:
    """Of a modules.dep: by module, those that must be loaded before it, the first one last."""
    lines = (line.partition(":") for line in text.splitlines())
    return {module: needed.split() for module, _, needed in lines}


def load_order(needs: Mapping[str, Sequence[str]], names: Sequence[str]) -> list[str]:
    """These modules with all that they need, each after what it needs; those built in are not in the table."""
    by_name = {Path(path).name.split(".")[0].replace("-", "_"): path for path in needs}
    wanted = [by_name[name] for name in names if name in by_name]
    return list(dict.fromkeys(path for module in wanted for path in [*reversed(needs[module]), module]))


def initrd(kernel: Kernel, order: Order) -> bytes:
    """The VM's first files, as an archive that the kernel unpacks."""
    busybox = components.find("busybox")
    assert busybox is not None
    modules = kernel.first_modules()
    files = {
        "init": (_BOOT / "init").read_bytes(),
        "bin/busybox": Path(busybox).read_bytes(),
        "modules/order": "".join(f"{module.name}\n" for module in modules).encode(),
        "vm/setup": (_BOOT / "setup").read_bytes(),
        "vm/order": order.settings(kernel.modules).encode(),
        "vm/command": f"{shlex.join(order.command)}\n".encode(),
        **{f"modules/{module.name}": module.read_bytes() for module in modules},
    }
    return archive(files)


def compile_sources() -> None:
    """Bytecode for everything that a VM may import: it sees these files, and compiles 25 times slower."""
    for folder in ("src", "tests"):
        compileall.compile_dir(REPO / folder, quiet=2)


def archive(files: Mapping[str, bytes]) -> bytes:
    """A cpio archive in the format that the kernel reads ("newc"): folders before what is in them."""
    packed = bytearray()
    folders = dict.fromkeys(str(parent) for name in files for parent in reversed(Path(name).parents))
    entries = [(folder, 0o040755, b"") for folder in folders if folder != "."]
    entries += [(name, 0o100755, content) for name, content in files.items()]
    entries += [("TRAILER!!!", 0, b"")]
    for number, (name, mode, content) in enumerate(entries, start=1):
        # inode, mode, uid, gid, links, time, size, four device numbers, length of the name, no checksum
        fields = [number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0]
        header = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
        packed += header + bytes(-len(header) % 4)
        packed += content + bytes(-len(content) % 4)
    return bytes(packed)
