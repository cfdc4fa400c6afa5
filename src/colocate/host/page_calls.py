"""System calls on pages of other processes: find, move and touch them. Nothing is decided here.

move_pages(2) is called through libc's syscall(2), since a machine may lack libnuma. Addresses and answers are packed
arrays: a slice of pages costs one call, not one object per page.
"""

import ctypes
import errno
import os
import platform
from array import array
from itertools import chain

from colocate.errors import system_reason

_NUMBERS = {"x86_64": 279, "aarch64": 239, "riscv64": 239, "loongarch64": 239, "ppc64le": 301, "s390x": 310}
"""The number of move_pages by machine; every supported kernel has the call."""

_MPOL_MF_MOVE = 2
_MPOL_MF_MOVE_ALL = 4

_MOST_VECTORS = 1024
"""IOV_MAX: the most pieces of memory that one call reads."""

UNTOUCHED = -(1 << 20)
"""Not an errno: the kernel did not reach this page."""


def refusal() -> str:
    """Why this process cannot move pages of others, tried by a call that moves none; empty where it can."""
    try:
        Kernel().move(0, array("Q"), 0, shared=True)
    except OSError as error:
        return system_reason(error)
    return ""


class Kernel:
    """The kernel of this machine; tests derive one of their own."""

    def __init__(self) -> None:
        number = _NUMBERS.get(platform.machine())
        if number is None:
            raise OSError(errno.ENOSYS, f"the number of move_pages on {platform.machine()} is not known")
        self._number = number
        libc = ctypes.CDLL(None, use_errno=True)
        self._syscall = libc.syscall
        self._syscall.restype = ctypes.c_long
        self._process_vm_readv = libc.process_vm_readv
        self._process_vm_readv.restype = ctypes.c_ssize_t

    def where(self, pid: int, addresses: "array[int]") -> "array[int]":
        """The NUMA node of each page, or minus an errno."""
        return self._call(pid, addresses, None, 0)

    def move(self, pid: int, addresses: "array[int]", node: int, *, shared: bool) -> "array[int]":
        """Move pages, those that other processes also map only if `shared`; the node of each, or minus an errno.

        OSError where the call failed as a whole; some pages may have moved.
        """
        nodes = array("i", [node]) * len(addresses)
        return self._call(pid, addresses, nodes, _MPOL_MF_MOVE_ALL if shared else _MPOL_MF_MOVE)

    def touch(self, pid: int, addresses: "array[int]") -> None:
        """Read a byte of each page, so that NUMA balancing no longer hides it; unreadable pages are skipped."""
        sink = ctypes.create_string_buffer(_MOST_VECTORS)
        into = array("Q", [ctypes.addressof(sink), _MOST_VECTORS])
        at = 0
        while at < len(addresses):
            some = addresses[at : at + _MOST_VECTORS]
            vectors = array("Q", chain.from_iterable((address, 1) for address in some))
            read: int = self._process_vm_readv(
                ctypes.c_int(pid),
                ctypes.c_void_p(into.buffer_info()[0]),
                ctypes.c_ulong(1),
                ctypes.c_void_p(vectors.buffer_info()[0]),
                ctypes.c_ulong(len(some)),
                ctypes.c_ulong(0),
            )
            # The call stops at the first page that cannot be read.
            at += max(0, read) + (read < len(some))

    def _call(
        self, pid: int, addresses: "array[int]", nodes: "array[int] | None", flags: int
    ) -> "array[int]":
        status = array("i", [UNTOUCHED]) * len(addresses)
        done: int = self._syscall(
            ctypes.c_long(self._number),
            ctypes.c_long(pid),
            ctypes.c_ulong(len(addresses)),
            ctypes.c_void_p(addresses.buffer_info()[0]),
            ctypes.c_void_p(nodes.buffer_info()[0] if nodes is not None else None),
            ctypes.c_void_p(status.buffer_info()[0]),
            ctypes.c_int(flags),
        )
        # A positive result counts the pages that stayed; `status` says which.
        if done < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return status
