"""Processes with pages on NUMA nodes, and a kernel that moves them as move_pages(2) does."""

import errno
import os
from array import array
from pathlib import Path

from colocate.host.page_calls import Kernel

PAGE = os.sysconf("SC_PAGE_SIZE")


class FakeKernel(Kernel):
    """Answers for processes whose /proc files it has written; breaks where a test says so."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self.pages: dict[int, dict[int, int]] = {}
        """By process, the node of each page by its address."""
        self.stubborn: set[int] = set()
        """Pages that do not move."""
        self.shared: set[int] = set()
        """Pages that others map too."""
        self.marked: set[int] = set()
        """Pages that NUMA balancing has marked: a kernel of Linux 6.1 denies them until they are touched."""
        self.room = 1 << 40
        """How many pages the target still takes."""
        self.offline: set[int] = set()
        self.refuses: int | None = None
        """An errno with which every move is answered."""
        self.ends_at_call: int | None = None
        """At the which call all processes are gone."""
        self.calls = 0

    def process(
        self, pid: int, mappings: dict[int, dict[int, int]], names: dict[int, str] | None = None
    ) -> None:
        """A process with these pages: by the start of each mapping the node by the page's number in it."""
        own = self.proc / str(pid)
        own.mkdir(parents=True)
        maps, numa_maps = [], []
        flags: dict[int, int] = {}
        for start, pages in mappings.items():
            end = start + (max(pages) + 1) * PAGE
            maps.append(f"{start:x}-{end:x} rw-p 00000000 00:00 0 \n")
            counts = {node: list(pages.values()).count(node) for node in sorted(set(pages.values()))}
            by_node = " ".join(f"N{node}={count}" for node, count in counts.items())
            name = (names or {}).get(start, "anon=1")
            numa_maps.append(f"{start:x} default {name} {by_node} kernelpagesize_kB=4\n")
            flags |= {start + number * PAGE: node for number, node in pages.items()}
        (own / "maps").write_text("".join(maps))
        (own / "numa_maps").write_text("".join(numa_maps))
        with (own / "pagemap").open("wb") as pagemap:
            for address in flags:
                pagemap.seek(address // PAGE * 8)
                pagemap.write((1 << 63).to_bytes(8, "little"))
        self.pages[pid] = flags

    def where(self, pid: int, addresses: "array[int]") -> "array[int]":
        self._count()
        if pid not in self.pages:
            raise OSError(errno.ESRCH, "No such process")
        own = {at: node for at, node in self.pages[pid].items() if at not in self.marked}
        return array("i", [own.get(address, -errno.EFAULT) for address in addresses])

    def touch(self, pid: int, addresses: "array[int]") -> None:
        self.marked -= set(addresses)

    def move(self, pid: int, addresses: "array[int]", node: int, *, shared: bool) -> "array[int]":
        self._count()
        if self.refuses or node in self.offline:
            raise OSError(self.refuses or errno.ENODEV, "refused")
        if pid not in self.pages:
            raise OSError(errno.ESRCH, "No such process")
        answers = array("i")
        for address in addresses:
            if address in self.marked:
                answers.append(-errno.EFAULT)
            elif address in self.stubborn:
                answers.append(-errno.EBUSY)
            elif address in self.shared and not shared:
                answers.append(-errno.EACCES)
            elif self.room <= 0:
                answers.append(-errno.ENOMEM)
            else:
                self.pages[pid][address] = node
                self.room -= 1
                answers.append(node)
        return answers

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self.ends_at_call:
            self.pages.clear()
