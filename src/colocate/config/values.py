"""Sections of configuration files, and values with a notation, such as spans of time and shares.

Each kind of value has a type and a function that reads it; its ValueError says how to write one.
"""

import math
import re
from pathlib import Path
from typing import Any

import msgspec

from colocate.model import quantity


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A mapping in the file. Unknown fields are refused."""


class Seconds(float):
    """A span of time, written as a number of seconds or as '500ms', '10s', '1m', '1h'."""


class Size(int):
    """An amount of memory, written as bytes or as '512Mi', '2Gi'."""


class CpuAmount(int):
    """An amount of CPUs in thousandths, written as '750m' or 2."""


class Share(float):
    """A part of a whole, written as '10%' or 0.1."""


class Address(str):
    """Where to listen: 'host:port', or 'off'."""

    __slots__ = ()

    def split_host(self) -> tuple[str, int] | None:
        """Host and port; None for 'off'."""
        if self == "off":
            return None
        host, _, port = self.rpartition(":")
        return host.strip("[]"), int(port)


_SPAN = re.compile(r"(\d+(?:\.\d*)?|\.\d+) *(ms|s|m|h)?")
_UNIT = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, None: 1}


def to_seconds(value: object) -> Seconds:
    """Read a span of time; ValueError says how one is written."""
    if isinstance(value, str) and (match := _SPAN.fullmatch(value.strip())):
        value = float(match[1]) * _UNIT[match[2]]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("a span of time; write a number of seconds, or a span like 500ms, 10s, 1m, 1h")
    return Seconds(value)


def to_size(value: object) -> Size:
    """Read an amount of memory; ValueError says how one is written."""
    try:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ValueError
        size = quantity.whole(value)
    except ValueError:
        raise ValueError("an amount of memory; write it like 512Mi or 2Gi") from None
    return Size(size)


def to_cpu_amount(value: object) -> CpuAmount:
    """Read an amount of CPUs; ValueError says how one is written."""
    try:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError
        amount = quantity.milli(str(value))
    except ValueError:
        raise ValueError("an amount of CPUs; write it like 750m or 2") from None
    return CpuAmount(amount)


def to_share(value: object) -> Share:
    """Read a part of a whole; ValueError says how one is written."""
    try:
        if isinstance(value, str) and value.strip().endswith("%"):
            return Share(float(value.strip()[:-1]) / 100)
        if isinstance(value, str):
            value = float(value)
    except ValueError:
        value = None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("a share; write it like 10% or 0.1")
    return Share(value)


def to_address(value: object) -> Address:
    """Read an address to listen on; ValueError says how one is written."""
    if isinstance(value, str):
        host, colon, port = value.rpartition(":")
        plain = host.startswith("[") == host.endswith("]") and (":" not in host or host.startswith("["))
        if value == "off" or (
            colon and host and plain and port.isascii() and port.isdigit() and len(port) < 6
        ):
            return Address(value)
    raise ValueError("an address; write it like 127.0.0.1:9464 or [::1]:9464, or off")


def to_path(value: object) -> Path:
    """Read a path; ValueError says how one is written."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("a path; write it like /var/lib/kubelet")
    return Path(value)


def plain(value: object) -> object:
    """The value as a plain number."""
    if isinstance(value, Seconds | Share):
        return float(value)
    return int(value) if isinstance(value, Size) else value


_READ = {
    Seconds: to_seconds,
    Size: to_size,
    CpuAmount: to_cpu_amount,
    Share: to_share,
    Address: to_address,
    Path: to_path,
}


def decode(kind: type, value: Any) -> Any:
    """Build the types above from values of a file (a msgspec dec_hook)."""
    return _READ[kind](value)


def encode(value: Any) -> Any:
    """Turn the types above into values for a file (a msgspec enc_hook)."""
    if isinstance(value, Seconds):
        return int(value) if value.is_integer() else float(value)
    if isinstance(value, CpuAmount):
        return f"{int(value)}m"
    if isinstance(value, Size):
        return int(value)
    if isinstance(value, Share):
        return float(value)
    return str(value)
