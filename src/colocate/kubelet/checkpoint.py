"""The kubelet's record of who holds which device, the file `kubelet_internal_checkpoint`.

Reads, checks and writes it exactly as the kubelet does, in the three formats that kubelets have written: it accepts
what a kubelet would load, and renders byte for byte what a kubelet would write. Bytes in, bytes out: the caller
reads and replaces the file.

A matching checksum proves less than it seems: the kubelet hashes a text in which the ids ["a", "b"] and
["a b"] look the same.
"""

import base64
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import msgspec

from colocate.errors import UserError
from colocate.kubelet import _go_values as go
from colocate.kubelet import _gojson as gojson
from colocate.kubelet import allocation
from colocate.kubelet._gotext import fnv1a, fold, json_list, json_map, printed_list, printed_map, quote
from colocate.model.checkpoint import Checkpoint, Entry, Format, Ids, Reading


class CheckpointError(UserError):
    """The bytes are not a checkpoint that any kubelet would read."""


class CheckpointDocument(msgspec.Struct, frozen=True, dict=True):
    """A checkpoint as found in a file, with the checksum that the file states."""

    checkpoint: Checkpoint
    checksum: int | None
    """None when the file states none, which the kubelet reads as 0."""
    format: Format
    unknown: tuple[str, ...] = ()
    """Paths of members that kubelets ignore, each once; `render` leaves them out."""

    @cached_property
    def computed(self) -> int:
        """The checksum computed from the data; costs about as much as parsing the file."""
        return checksum(self.checkpoint, self.format)

    @property
    def sound(self) -> bool:
        """Whether the checksum matches. Always False in the PLAIN format, which has no checksum."""
        return self.format is not Format.PLAIN and (self.checksum or 0) == self.computed

    def reading(self) -> Reading:
        """The file, fully decoded."""
        injected = tuple(allocation.read(entry.alloc_resp or b"") for entry in self.checkpoint.entries or ())
        return Reading(self.checkpoint, self.format, self.checksum, self.computed, injected)


# Reading ---------------------------------------------------------------------------------------------


class _EntryState(go.Struct):
    """A PodDevicesEntry while it is being decoded; it may be decoded into more than once."""

    def __init__(self) -> None:
        super().__init__()
        self.pod_uid = self.container = self.resource = ""
        self.devices: dict[int, go.Slice[str] | None] | go.Slice[str] | None = None
        self.alloc_resp: go.Slice[int] | None = None

    def freeze(self) -> Entry:
        devices: dict[int, Ids] | Ids
        if isinstance(self.devices, dict):
            devices = {node: _ids(ids) for node, ids in self.devices.items()}
        else:
            devices = _ids(self.devices)
        response = None if self.alloc_resp is None else bytes(self.alloc_resp.values)
        return Entry(self.pod_uid, self.container, self.resource, devices, response)


class _DataState(go.Struct):
    def __init__(self) -> None:
        super().__init__()
        self.entries: go.Slice[_EntryState] | None = None
        self.registered: dict[str, go.Slice[str] | None] | None = None

    def freeze(self) -> Checkpoint:
        entries = None if self.entries is None else tuple(e.freeze() for e in self.entries.values)
        registered = None
        if self.registered is not None:
            registered = {resource: _ids(ids) for resource, ids in self.registered.items()}
        return Checkpoint(entries, registered)

    def unknown_paths(self, prefix: str = "") -> Iterator[str]:
        yield from (f"{prefix}{name}" for name in self.unknown)
        for entry in () if self.entries is None else self.entries.values:
            yield from (f"{prefix}PodDeviceEntries[].{name}" for name in entry.unknown)


class _FileState(go.Struct):
    def __init__(self) -> None:
        super().__init__()
        self.data = _DataState()
        self.checksum: int | None = None


def _ids(ids: go.Slice[str] | None) -> Ids:
    return None if ids is None else tuple(ids.values)


_strings = go.slice_of(go.string, str)


def _no_ids() -> go.Slice[str] | None:
    return None


def _data_decoder(device_ids: go.Decoder[Any]) -> go.Decoder[_DataState]:
    entry: go.Decoder[_EntryState] = go.struct_of(
        {
            "PodUID": ("pod_uid", go.string),
            "ContainerName": ("container", go.string),
            "ResourceName": ("resource", go.string),
            "DeviceIDs": ("devices", device_ids),
            "AllocResp": ("alloc_resp", go.byte_slice),
        }
    )
    return go.struct_of(
        {
            "PodDeviceEntries": ("entries", go.slice_of(entry, _EntryState)),
            "RegisteredDevices": ("registered", go.map_of(go.string_key, _strings, _no_ids)),
        }
    )


def _file_decoder(data: go.Decoder[_DataState]) -> go.Decoder[_FileState]:
    return go.struct_of({"Data": ("data", data), "Checksum": ("checksum", go.uint(64))})


_list_data = _data_decoder(_strings)
_numa_data = _data_decoder(go.map_of(go.int64_key, _strings, _no_ids))
_DATA = {Format.PLAIN: _list_data, Format.LIST: _list_data, Format.NUMA: _numa_data}
_FILE = {Format.LIST: _file_decoder(_list_data), Format.NUMA: _file_decoder(_numa_data)}


def parse(blob: bytes, format: Format | None = None) -> CheckpointDocument:
    """Parse a checkpoint file in any format, or only in `format`.

    `CheckpointError` where it cannot be parsed. A file with a wrong checksum is still returned: check `sound`.
    """
    try:
        tree = gojson.read(blob)
        return _recognise(tree) if format is None else _decode(tree, format)
    except gojson.Malformed as error:
        raise CheckpointError(
            f"the checkpoint is not a complete JSON document: {error}; check that it is the kubelet's "
            "kubelet_internal_checkpoint and that it was copied completely"
        ) from None
    except go.Mismatch as error:
        raise CheckpointError(
            f"the checkpoint is not what a kubelet writes: {error}; undo edits by hand, or fetch the "
            "kubelet's own file again"
        ) from None


def _decode(tree: gojson.Json, format: Format) -> CheckpointDocument:
    if format is Format.PLAIN:
        data = _DATA[format](tree, _DataState())
        return CheckpointDocument(data.freeze(), None, format, _each_once(data.unknown_paths()))
    file = _FILE[format](tree, _FileState())
    unknown = _each_once((*file.unknown, *file.data.unknown_paths("Data.")))
    return CheckpointDocument(file.data.freeze(), file.checksum, format, unknown)


def _each_once(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(paths))


def _recognise(tree: gojson.Json) -> CheckpointDocument:
    """Find the format by trying the newest first.

    A file in which no container holds an id parses alike in both formats with a checksum. Then only the checksum
    can tell them apart, because the hashed text names the type of an absent list.
    """
    names = {fold(name) for name, _ in tree} if isinstance(tree, gojson.Object) else set()
    if not names & {"data", "checksum"} and names & {"poddeviceentries", "registereddevices"}:
        return _decode(tree, Format.PLAIN)
    try:
        newest = _decode(tree, Format.NUMA)
    except go.Mismatch as as_numa:
        if not as_numa.path.endswith("DeviceIDs"):
            raise  # both formats fail here, or the error is inside a map by NUMA node
        return _decode(tree, Format.LIST)
    entries = newest.checkpoint.entries or ()
    if entries and all(entry.devices is None for entry in entries) and not newest.sound:
        try:
            older = _decode(tree, Format.LIST)
        except go.Mismatch:
            return newest
        return older if older.sound else newest
    return newest


# Writing ---------------------------------------------------------------------------------------------

_DECIMAL = tuple(str(byte) for byte in range(256))


def checksum(checkpoint: Checkpoint, format: Format = Format.NUMA) -> int:
    """The checksum that a kubelet writes for this data; PLAIN, which has none, counts as LIST."""
    return fnv1a(hash_text(checkpoint, format).encode())


def hash_text(checkpoint: Checkpoint, format: Format = Format.NUMA) -> str:
    """The text whose hash is the checksum: the kubelet's Go values, printed with their types."""
    entries = "<nil>"
    if checkpoint.entries is not None:
        entries = f"[{' '.join(_entry_text(entry, format) for entry in checkpoint.entries)}]"
    return (
        "(checkpoint.checkpointData){"
        f"PodDeviceEntries:([]checkpoint.PodDevicesEntry){entries}"
        f" RegisteredDevices:(map[string][]string){printed_map(checkpoint.registered)}"
        "}"
    )


def _entry_text(entry: Entry, format: Format) -> str:
    if format is Format.NUMA:
        devices = f"(checkpoint.DevicesPerNUMA){printed_map(_by_node(entry))}"
    else:
        devices = f"([]string){printed_list(_listed(entry))}"
    response = None if entry.alloc_resp is None else map(_DECIMAL.__getitem__, entry.alloc_resp)
    return (
        f"{{PodUID:(string){entry.pod_uid}"
        f" ContainerName:(string){entry.container}"
        f" ResourceName:(string){entry.resource}"
        f" DeviceIDs:{devices}"
        f" AllocResp:([]uint8){printed_list(response)}}}"
    )


def _by_node(entry: Entry) -> dict[int, Ids] | None:
    if isinstance(entry.devices, tuple):
        raise ValueError(f"pod {entry.pod_uid} has a list of ids, which the NUMA format cannot express")
    return entry.devices


def _listed(entry: Entry) -> Ids:
    if isinstance(entry.devices, dict):
        raise ValueError(f"pod {entry.pod_uid} has ids by NUMA node, which only the NUMA format can express")
    return entry.devices


def render(checkpoint: Checkpoint, format: Format = Format.NUMA) -> bytes:
    """The file, byte for byte as a kubelet writes it, with the checksum of the data."""
    entries = "null"
    if checkpoint.entries is not None:
        entries = f"[{','.join(_entry_json(entry, format) for entry in checkpoint.entries)}]"
    data = f'{{"PodDeviceEntries":{entries},"RegisteredDevices":{json_map(checkpoint.registered)}}}'
    if format is not Format.PLAIN:
        data = f'{{"Data":{data},"Checksum":{checksum(checkpoint, format)}}}'
    return data.encode()


def _entry_json(entry: Entry, format: Format) -> str:
    devices = json_map(_by_node(entry)) if format is Format.NUMA else json_list(_listed(entry))
    response = "null"
    if entry.alloc_resp is not None:
        response = f'"{base64.b64encode(entry.alloc_resp).decode()}"'
    return (
        f'{{"PodUID":{quote(entry.pod_uid)}'
        f',"ContainerName":{quote(entry.container)}'
        f',"ResourceName":{quote(entry.resource)}'
        f',"DeviceIDs":{devices}'
        f',"AllocResp":{response}}}'
    )
