"""Decodes bodies in Kubernetes' protobuf form into the same plain data as from JSON. Pure.

Only requests, and only the messages of `protobuf_fields`: answers are always JSON, which every client accepts.
"""

import base64
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from colocate.lab.api.objects import Object
from colocate.lab.api.protobuf_fields import MESSAGES, Field
from colocate.lab.api.status import bad_request, unsupported_media_type

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\0"
_DEEPEST = 50
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read(data: bytes) -> Object:
    """The object in an envelope; raises the Status of an invalid envelope."""
    if not data.startswith(_MAGIC):
        raise bad_request("the body is not in Kubernetes' protobuf form: it does not begin with its mark")
    try:
        return _read(memoryview(data)[len(_MAGIC) :])
    except (ValueError, IndexError) as error:
        raise bad_request(f"the request body cannot be read: {error}") from None


def _read(envelope: memoryview) -> Object:
    parts = dict(_fields(envelope))
    names = dict(_fields(_bytes(parts.get(1, memoryview(b"")))))
    api_version = bytes(_bytes(names.get(1, b""))).decode()
    kind = bytes(_bytes(names.get(2, b""))).decode()
    in_group = f"{kind}.{api_version.partition('/')[0]}"
    name = in_group if in_group in MESSAGES else kind
    if name not in MESSAGES:
        raise unsupported_media_type([f"application/json (a {kind or 'body'} is not read as protobuf)"])
    return {"kind": kind, "apiVersion": api_version} | _message(name, _bytes(parts.get(2, b"")), 0)


def _message(name: str, data: memoryview, depth: int) -> Object:
    if depth > _DEEPEST:
        raise ValueError("it is nested too deeply")
    known = MESSAGES[name]
    found: Object = {}
    for number, value in _fields(data):
        field = known.get(number)
        if field is None:
            raise unsupported_media_type([f"application/json (field {number} of {name} is not read)"])
        if field.type != "skip":
            _put(found, field, value, depth)
    return found


def _put(found: Object, field: Field, value: int | memoryview, depth: int) -> None:
    if field.mapped:
        entry = dict(_fields(_bytes(value)))
        key = bytes(_bytes(entry.get(1, b""))).decode()
        found.setdefault(field.name, {})[key] = _value(field.type, entry.get(2, b""), depth)
        return
    read = _value(field.type, value, depth)
    if field.repeated:
        found.setdefault(field.name, []).append(read)
    elif read or field.keeps_zero or field.type == "IntOrString":
        found[field.name] = read


def _value(type: str, value: int | memoryview | bytes, depth: int) -> Any:
    match type:
        case "text":
            return bytes(_bytes(value)).decode()
        case "bytes":
            return base64.b64encode(_bytes(value)).decode()
        case "int":
            return _signed(value)
        case "flag":
            return bool(_signed(value))
        case "Quantity":
            text = dict(_fields(_bytes(value))).get(1, b"")
            return bytes(_bytes(text)).decode()
        case "Time" | "MicroTime":
            return _moment(type, dict(_fields(_bytes(value))))
        case "IntOrString":
            either = dict(_fields(_bytes(value)))
            if either.get(1, 0):
                return bytes(_bytes(either.get(3, b""))).decode()
            return _signed(either.get(2, 0))
    return _message(type, _bytes(value), depth + 1)


def _moment(type: str, parts: dict[int, int | memoryview]) -> str | None:
    """A time as in JSON; None where it was never set."""
    if not parts:
        return None
    try:
        moment = _EPOCH + timedelta(
            seconds=_signed(parts.get(1, 0)), microseconds=_signed(parts.get(2, 0)) // 1000
        )
    except OverflowError:
        raise ValueError("a time is out of range") from None
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if type == "MicroTime" else "%Y-%m-%dT%H:%M:%SZ")


def _bytes(value: int | memoryview | bytes) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number was found in place of a message")
    return memoryview(value)


def _signed(value: int | memoryview | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("a message was found in place of a number")
    return value - (1 << 64) if value >= 1 << 63 else value


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The fields of a message: numbers as integers, everything else as bytes."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        if tag & 7 == 0:
            value, position = _varint(data, position)
            yield tag >> 3, value
        elif tag & 7 == 2:
            length, position = _varint(data, position)
            if position + length > len(data):
                raise ValueError("a field ends after the message")
            yield tag >> 3, data[position : position + length]
            position += length
        else:
            raise ValueError(f"a field has the wire type {tag & 7}")


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")
