"""What the commands report about a checkpoint, as data for tables, JSON and YAML."""

from collections.abc import Mapping, Sequence

import msgspec

from colocate.devices.findings import Finding
from colocate.model.checkpoint import Format, Ids, Reading
from colocate.model.device import Allocation


class CheckpointReport(msgspec.Struct, frozen=True):
    """The findings about a file."""

    file: str
    findings: Sequence[Finding]


class Comparison(CheckpointReport, frozen=True):
    """The findings about a file and other records."""

    silent: Sequence[str]
    """A sentence for each source that did not answer."""


class ShownChecksum(msgspec.Struct, frozen=True):
    stated: int | None
    computed: int
    right: bool


class ShownEntry(msgspec.Struct, frozen=True, rename="camel"):
    """One container's share of one resource."""

    pod: str | None
    """`namespace/name`, if known."""
    pod_uid: str = msgspec.field(name="podUID")
    container: str
    resource: str
    devices: Mapping[int, Sequence[str]]
    """Ids by NUMA node; -1 if unknown."""
    injected: Allocation | None
    """What was injected; None if it cannot be read."""


class ShownCheckpoint(msgspec.Struct, frozen=True):
    """A whole checkpoint."""

    file: str
    format: Format
    checksum: ShownChecksum | None
    """The checksum; None in the oldest format, which has none."""
    entries: Sequence[ShownEntry]
    registered: Mapping[str, Ids]


def shown(file: str, reading: Reading, names: Mapping[str, str]) -> ShownCheckpoint:
    """Everything in a file, with the names of pods if known."""
    checksum = ShownChecksum(reading.stated, reading.computed, reading.is_trusted)
    entries = tuple(
        ShownEntry(
            pod=names.get(entry.pod_uid),
            pod_uid=entry.pod_uid,
            container=entry.container,
            resource=entry.resource,
            devices=entry.by_node,
            injected=injected,
        )
        for entry, injected in zip(reading.checkpoint.entries or (), reading.injected, strict=True)
    )
    return ShownCheckpoint(
        file,
        reading.format,
        None if reading.format is Format.PLAIN else checksum,
        entries,
        reading.checkpoint.registered or {},
    )
