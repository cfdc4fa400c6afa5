"""What a VM boots from: modules in an order that loads, an archive that unpacks, an order that a shell reads."""

import contextlib
import lzma
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support import components
from tests.vm import image
from tests.vm.image import Kernel, Order, archive, dependencies, load_order

MODULES_DEP = """\
kernel/net/9p/9pnet.ko:
kernel/net/9p/9pnet_virtio.ko: kernel/virtio/virtio_ring.ko kernel/virtio/virtio.ko kernel/net/9p/9pnet.ko
kernel/fs/9p/9p.ko: kernel/fs/fscache/fscache.ko kernel/fs/netfs/netfs.ko kernel/net/9p/9pnet.ko
kernel/virtio/virtio.ko:
kernel/virtio/virtio_ring.ko: kernel/virtio/virtio.ko
kernel/fs/netfs/netfs.ko:
kernel/fs/fscache/fscache.ko: kernel/fs/netfs/netfs.ko
kernel/drivers/virtio-odd.ko:
"""


def test_a_module_comes_after_all_that_it_needs_and_once() -> None:
    needs = dependencies(MODULES_DEP)
    order = load_order(needs, ["9pnet_virtio", "9p", "virtio_odd"])
    assert len(order) == len(set(order)) == 8
    for place, module in enumerate(order):
        assert set(needs[module]) <= set(order[:place])


def test_a_module_that_is_built_into_the_kernel_is_not_looked_for() -> None:
    assert load_order(dependencies(MODULES_DEP), ["ext4"]) == []


@pytest.mark.needs("busybox")
def test_the_archive_unpacks_to_what_was_put_in(tmp_path: Path) -> None:
    files = {"init": b"first", "a/b/odd": b"x" * 4097, "a/empty": b""}
    busybox = components.find("busybox")
    assert busybox
    subprocess.run(
        [busybox, "cpio", "-i"], input=archive(files), cwd=tmp_path, check=True, capture_output=True
    )
    there = {str(path.relative_to(tmp_path)): path for path in tmp_path.rglob("*") if path.is_file()}
    assert {name: path.read_bytes() for name, path in there.items()} == files
    assert there["init"].stat().st_mode & 0o777 == 0o755


def test_a_shell_reads_the_order_back_whatever_is_in_it() -> None:
    value = "a 'quoted' $word\nand a line"
    order = Order(["true"], {"ODD": value}, disk=True).settings(Path("/some/modules"))
    script = f'{order}printf "%s|%s|%s|%s" "$modules" "$disk" "$interactive" "$ODD"'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"/some/modules|/disk||{value}"


def test_modules_that_this_machine_has_itself_need_no_mount() -> None:
    assert "modules=''\n" in Order(["true"]).settings(Path("/lib/modules"))


def test_the_kernel_is_unpacked_once_however_many_vms_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "_CACHE", tmp_path / "cache")
    kernel = b"\x7fELF" + bytes(1 << 20)
    packed = tmp_path / "vmlinuz-1.0-amd64"
    packed.write_bytes(b"a loader before it" + lzma.compress(kernel))
    two, real = threading.Barrier(2), lzma.LZMADecompressor
    unpackings: list[bytes] = []

    class Unpacking:
        """Waits a moment for a second one, which must not come."""

        def decompress(self, data: bytes) -> bytes:
            unpackings.append(data)
            with contextlib.suppress(threading.BrokenBarrierError):
                two.wait(0.2)
            return real().decompress(data)

    monkeypatch.setattr(lzma, "LZMADecompressor", Unpacking)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: Kernel(packed).unpacked().read_bytes(), range(8)))
    assert len(unpackings) == 1
    assert set(found) == {kernel}
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["vmlinux-1.0-amd64"]
