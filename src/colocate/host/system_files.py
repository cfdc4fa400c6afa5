"""The files of a machine by their paths below /sys: of this machine, or of a dump of another one.

A dump is a folder or a tar archive (plain, gzip, bzip2), made by anybody: nothing of it is written to disk, only
files with the names that are asked for are kept, each is bounded, links lead nowhere outside, and a folder's file
must be a plain one. What the files say is not judged here.
"""

import bz2
import gzip
import io
import os
import posixpath
import re
import stat
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from colocate.errors import UserError, system_reason

SYS = Path("/sys")
PROC = Path("/proc")
CPUINFO = "proc/cpuinfo"
"""Read beside /sys: the one file of interest that is not below it."""

_LARGEST_FILE = 1 << 20
_LARGEST_ARCHIVE = 4 << 30
"""Bytes, unpacked: a machine with 2048 CPUs fills half a gigabyte with blocks of 512."""
_FIRST_OF_CPUINFO = 1 << 16
"""Bytes: the first of its CPUs says what all are."""
_LARGEST_KEPT = 256 << 20
_MEMBER_COST = 256
"""Bytes that it takes to remember a member, beside its name and content."""
_MOST_MEMBERS = 4_000_000
_LONGEST_NAME = 4096
_BLOCK = 512
_PIECE = 1 << 20
_ROOT = "devices/system/cpu"

_KEPT = re.compile(
    r"devices/system/cpu/(?:(?:online|offline|isolated)"
    r"|cpu\d{1,6}/(?:cpu_capacity|node\d{1,6}|topology/\w{1,40}|cache/index\d{1,3}/(?:level|type|id|shared_cpu_\w{1,9})))"
    r"|devices/system/node/(?:online|node\d{1,6}/(?:cpulist|cpumap|distance|meminfo))"
    r"|devices/cpu_(?:core|atom)/cpus",
    re.ASCII,
)
_WHERE = re.compile(
    r"(?P<root>(?:.*/)?)(?P<path>devices/(?:system/(?:cpu|node)|cpu_core|cpu_atom)/.*)", re.ASCII
)


class SystemFiles(Protocol):
    """Files by their paths below /sys."""

    @property
    def name(self) -> str:
        """What errors call it."""

    def read(self, path: str) -> str | None:
        """The text of a file; None where there is none."""

    def names(self, folder: str) -> list[str]:
        """What is in a folder, in order; nothing where there is none."""


class FolderFiles:
    """Files below a folder that looks like /sys: /sys itself, or a dump."""

    def __init__(self, root: Path, cpuinfo: Path | None = None) -> None:
        self.name = str(root)
        self._root = Path(os.path.realpath(root))
        self._cpuinfo = cpuinfo or self._root.parent / CPUINFO

    def read(self, path: str) -> str | None:
        file = self._cpuinfo if path == CPUINFO else self._root / path
        try:
            within = Path(os.path.realpath(file)).is_relative_to(self._root)
            if path == CPUINFO:
                within = not file.is_symlink()
            if not within:
                raise UserError(
                    f"{self.name}: {path} is a link that leads out of the dump; remove it, or dump again"
                )
            handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise UserError(f"{self.name}: {path} cannot be read ({system_reason(error)})") from error
        with os.fdopen(handle, "rb") as opened:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise UserError(f"{self.name}: {path} is not a plain file; a dump has plain files only")
            try:
                data = opened.read(_FIRST_OF_CPUINFO if path == CPUINFO else _LARGEST_FILE + 1)
            except OSError:
                # The CPU or node went off while its files were read.
                return None
        return _text(data, self.name, path)

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self._root / folder))  # noqa: PTH208 - names alone are wanted
        except OSError:
            return []


class ArchiveFiles:
    """Files of a tar archive, as far as they were kept."""

    def __init__(self, name: str, files: dict[str, bytes]) -> None:
        self.name = name
        self._files = files
        self._folders: dict[str, set[str]] = {}
        for path in files:
            while "/" in path:
                path, _, last = path.rpartition("/")
                self._folders.setdefault(path, set()).add(last)

    def read(self, path: str) -> str | None:
        data = self._files.get(path)
        return None if data is None else _text(data, self.name, path)

    def names(self, folder: str) -> list[str]:
        return sorted(self._folders.get(folder, ()))


def this_machine() -> SystemFiles:
    """The machine that this process runs on."""
    return FolderFiles(SYS, PROC / "cpuinfo")


def open_dump(path: Path) -> SystemFiles:
    """A dump: a folder, or a tar archive."""
    if path.is_dir():
        return FolderFiles(_root_below(path))
    try:
        with path.open("rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UserError(f"{path}: a dump is a folder or a tar archive, this is neither")
            return ArchiveFiles(str(path), _kept(file, str(path)))
    except OSError as error:
        raise UserError(
            f"{path}: the dump cannot be read ({system_reason(error)}); check the path"
        ) from error


def _root_below(path: Path) -> Path:
    """The folder that stands for /sys: this one, or one at most two levels down."""
    levels = ("", "sys", "*/sys", "*")
    roots = [found for level in levels for found in (sorted(path.glob(level)) if level else [path])]
    found = [root for root in roots if (root / _ROOT).is_dir()]
    if not found:
        raise UserError(f"{path}: there is no {_ROOT} in it; docs/cpus.md says how a dump is made")
    return found[0]


def _kept(file: BinaryIO, name: str) -> dict[str, bytes]:
    """The wanted files of an archive by their paths below its root."""
    files: dict[str, dict[str, bytes]] = {}
    links: list[tuple[str, str, str]] = []
    cpuinfo: bytes | None = None
    total = 0
    for member, data in _members(_Unpacked(file, name)):
        match = _WHERE.fullmatch(_normal(member.name))
        if not match or not _KEPT.fullmatch(match["path"]):
            if f"/{_normal(member.name)}".endswith(f"/{CPUINFO}") and member.isreg():
                cpuinfo = data.read(_FIRST_OF_CPUINFO)
            continue
        total += _MEMBER_COST + len(member.name) + len(member.linkname)
        if total > _LARGEST_KEPT:
            raise _too_large(name)
        if member.islnk() or member.issym():
            links.append((match["root"], match["path"], _target(member)))
        elif member.isreg():
            if member.size > _LARGEST_FILE:
                raise UserError(
                    f"{name}: {match['path'][:200]} has {member.size} bytes; no file of sysfs has so many"
                )
            total += member.size
            if total > _LARGEST_KEPT:
                raise _too_large(name)
            files.setdefault(match["root"], {})[match["path"]] = data.read(member.size)
    kept = _one_root(files, links, name)
    return kept if cpuinfo is None else {**kept, CPUINFO: cpuinfo}


def _too_large(name: str) -> UserError:
    return UserError(f"{name}: its files are larger than those of any machine; give a dump of one machine")


def _one_root(
    files: dict[str, dict[str, bytes]], links: list[tuple[str, str, str]], name: str
) -> dict[str, bytes]:
    roots = [root for root, kept in files.items() if f"{_ROOT}/online" in kept] or list(files)
    if len(roots) > 1:
        shown = ", ".join(repr(root) for root in sorted(roots)[:3])
        raise UserError(f"{name}: it holds several machines ({shown}); give a dump of one")
    if not roots:
        raise UserError(f"{name}: there is no {_ROOT} in it; docs/cpus.md says how a dump is made")
    kept = files[roots[0]]
    for root, path, target in links:
        if root != roots[0]:
            continue
        if "/node" in path and path.startswith(_ROOT):
            kept[path] = b""  # cpuN/nodeM: that it is there is all that it says
        elif target.startswith(root) and (found := kept.get(target[len(root) :])) is not None:
            kept[path] = found
    return kept


def _target(member: tarfile.TarInfo) -> str:
    """Where a link leads, as a name in the archive."""
    if member.islnk():
        return _normal(member.linkname)
    return _normal(posixpath.join(posixpath.dirname(member.name), member.linkname))


def _normal(name: str) -> str:
    name = posixpath.normpath(name).lstrip("/")
    return "" if name.startswith("../") else name


class _Unpacked:
    """What a file holds once unpacked, read from front to back and bounded."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        start = file.read(6)
        file.seek(0)
        self._name = name
        self._left = _LARGEST_ARCHIVE
        self._stream = file
        if start.startswith(b"\x1f\x8b"):
            self._stream = cast(
                BinaryIO, io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=file)), _PIECE)
            )
        elif start.startswith(b"BZh"):
            self._stream = cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, bz2.BZ2File(file)), _PIECE))
        elif start.startswith((b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"PK")):
            raise UserError(f"{name}: archives are read plain or packed by gzip or bzip2; pack it again")

    def read(self, size: int) -> bytes:
        """So many bytes, fewer at the end."""
        pieces = []
        while size > 0:
            try:
                piece = self._stream.read(min(size, _PIECE))
            except (EOFError, OSError, zlib.error) as error:
                raise UserError(
                    f"{self._name}: the archive is damaged ({error}); copy or dump it again"
                ) from error
            if not piece:
                break
            self._left -= len(piece)
            if self._left < 0:
                raise UserError(
                    f"{self._name}: the archive unpacks to more than any machine has; nothing was kept"
                )
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def skip(self, size: int) -> None:
        while size > 0:
            piece = self.read(min(size, _PIECE))
            if not piece:
                return
            size -= len(piece)

    def damaged(self, why: str) -> UserError:
        return UserError(
            f"{self._name}: this is not a tar archive ({why}); give a folder or a tar archive of /sys"
        )


class _Content:
    """The content of one member; what is not read of it is skipped."""

    def __init__(self, stream: _Unpacked, size: int) -> None:
        self._stream = stream
        self._left = size
        self._padding = -size % _BLOCK

    def read(self, size: int) -> bytes:
        data = self._stream.read(min(size, self._left))
        self._left -= len(data)
        return data

    def finish(self) -> None:
        self._stream.skip(self._left + self._padding)


def _members(stream: _Unpacked) -> Iterator[tuple[tarfile.TarInfo, _Content]]:
    """Every member with its content.

    tarfile itself would read a header that claims to be a gigabyte into memory; here all but contents is bounded.
    """
    longer: dict[str, str] = {}
    for _ in range(_MOST_MEMBERS):
        header = stream.read(_BLOCK)
        if len(header) < _BLOCK or not header.strip(b"\0"):
            return
        try:
            member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise stream.damaged(str(error)) from error
        has_content = member.type not in (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE)
        content = _Content(stream, max(0, member.size) if has_content else 0)
        if member.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE):
            if member.size > 16 * _LONGEST_NAME:
                raise stream.damaged(f"a name of {member.size} bytes")
            data = content.read(member.size)
            content.finish()
            longer |= _long_names(member.type, data)
            continue
        member.name = longer.pop("path", member.name)[:_LONGEST_NAME]
        member.linkname = longer.pop("linkpath", member.linkname)[:_LONGEST_NAME]
        yield member, content
        content.finish()
        longer.clear()
    raise stream.damaged(f"more than {_MOST_MEMBERS} members")


def _long_names(kind: bytes, data: bytes) -> dict[str, str]:
    text = data.decode("utf-8", "surrogateescape")
    if kind != tarfile.XHDTYPE:
        return {"path" if kind == tarfile.GNUTYPE_LONGNAME else "linkpath": text.rstrip("\0")}
    found = (line.partition(" ")[2].partition("=") for line in text.splitlines())
    return {key: value for key, _, value in found if key in ("path", "linkpath")}


def _text(data: bytes, name: str, path: str) -> str:
    if len(data) > _LARGEST_FILE:
        raise UserError(f"{name}: {path} is larger than any file of sysfs; dump the machine again")
    # tar fills a file of sysfs up to the page that it claims to have.
    return data.rstrip(b"\0").decode("utf-8", "backslashreplace")
