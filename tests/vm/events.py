"""What a VM tells while it runs: one JSON object a line, through a port that only it and QEMU know.

The guest writes each line with one system call and this machine reads it at once, so what was told before a crash
is here.
"""

import os
from pathlib import Path
from typing import Any

import msgspec


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """It is up, and starts what it was ordered to run."""


class Started(msgspec.Struct, frozen=True, tag="started"):
    """A test begins."""

    test: str


class Reported(msgspec.Struct, frozen=True, tag="reported"):
    """pytest's report of a test's setup, call or teardown, as pytest serialises it."""

    report: dict[str, Any]


class Said(msgspec.Struct, frozen=True, tag="said"):
    """A message of the program's own, to whoever started the VM."""

    text: str


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """The command has ended, and the VM switches itself off."""

    code: int


Event = Ready | Started | Reported | Said | Exited

_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def decode(line: bytes) -> Event:
    return _decoder.decode(line)


def _tag(event: Event) -> str:
    return str(type(event).__struct_config__.tag)


def _tamed(value: Any) -> Any:
    """What a test puts into its report can be anything; JSON has only some of it."""
    if isinstance(value, dict):
        return {_tamed(str(key)): _tamed(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_tamed(item) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value).encode("utf-8", "backslashreplace").decode()


class Port:
    """The guest's end."""

    def __init__(self) -> None:
        self._handle = os.open(Path(os.environ["COLOCATE_VM_PORT"]), os.O_WRONLY)

    def tell(self, event: Event) -> None:
        try:
            line = msgspec.json.encode(event) + b"\n"
        except (TypeError, UnicodeEncodeError):
            line = msgspec.json.encode(_tamed(msgspec.structs.asdict(event) | {"type": _tag(event)})) + b"\n"
        while line:
            line = line[os.write(self._handle, line) :]
