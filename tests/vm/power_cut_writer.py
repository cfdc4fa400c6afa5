"""In a VM whose power is cut: says what it finds on the disk, then writes, and acknowledges every finished write.

python -m tests.vm.power_cut_writer HOW, where HOW is `atomically` or, to see that the test notices, `carelessly`.
"""

import hashlib
import itertools
import sys
from pathlib import Path

import msgspec

from colocate.host.files import write_atomically
from tests.vm.events import Port, Said
from tests.vm.image import DISK

FILES = 8
SIZES = (10, 4096, 5000, 70_000)


class Version(msgspec.Struct, frozen=True):
    """A version of a file, as it was found or as its writing was acknowledged."""

    file: str
    number: int
    whole: bool = True


def content(number: int) -> bytes:
    """What the version of a number is: a checksum over the number and its body."""
    body = f"{number} ".encode() * SIZES[number % len(SIZES)]
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def read(path: Path) -> Version:
    checksum, _, body = path.read_bytes().partition(b"\n")
    whole = hashlib.sha256(body).hexdigest().encode() == checksum
    return Version(path.name, int(body.split(b" ")[0]) if whole else 0, whole)


def write_carelessly(path: Path, data: bytes) -> None:
    """As many a program does: complete for every reader, and gone with the power."""
    path.with_suffix(".new").write_bytes(data)
    path.with_suffix(".new").replace(path)


def main(how: str) -> None:
    write = write_atomically if how == "atomically" else write_carelessly
    port = Port()
    found = [read(path) for path in sorted(DISK.glob("file-*")) if not path.suffix]
    port.tell(Said(msgspec.json.encode(found).decode()))
    for number in itertools.count(1 + max((version.number for version in found), default=0)):
        path = DISK / f"file-{number % FILES}"
        write(path, content(number))
        port.tell(Said(msgspec.json.encode([Version(path.name, number)]).decode()))


if __name__ == "__main__":
    main(sys.argv[1])
