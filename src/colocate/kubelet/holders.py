"""Finds which pod holds which devices, from podresources and the checkpoint. `model.holdings` joins the two.

`Holders` says which ids of a resource are held (for the SDK), `pods_holding` by which pods, and `injected_entries`
what Allocate answered for each.
"""

import asyncio
import base64
from collections.abc import Container, Sequence
from itertools import chain

import msgspec

from colocate import telemetry
from colocate.clock import Clock
from colocate.errors import ColocateError, Unavailable, system_reason
from colocate.kubelet import allocation, checkpoint
from colocate.kubelet.paths import KubeletPaths
from colocate.kubelet.podresources import list_pods, listed_pods
from colocate.model.checkpoint import Entry
from colocate.model.device import Allocation
from colocate.model.holdings import Holdings, holdings_of
from colocate.model.records import ListedPod
from colocate.telemetry import Event
from colocate.wire import podresources_pb2 as pr


def held_in(pods: pr.ListPodResourcesResponse, resource: str) -> frozenset[str]:
    """The ids of a resource that any container of any pod holds."""
    return frozenset(
        id
        for pod in pods.pod_resources
        for container in pod.containers
        for devices in container.devices
        if devices.resource_name == resource
        for id in devices.device_ids
    )


class Holders:
    """Says which ids of a resource are held; None where that is unknown."""

    def __init__(self, paths: KubeletPaths, clock: Clock) -> None:
        self._paths = paths
        self._clock = clock
        self._told = False

    async def held(self, resource: str) -> frozenset[str] | None:
        """The held ids according to podresources, or to the checkpoint where podresources does not answer."""
        asked, why = await self._ask(resource)
        if asked is not None:
            return asked
        read, why_not = await self._read(resource)
        self._tell_once(read is None, f"{why}; {why_not}")
        return read

    async def ever_held(self, resource: str) -> frozenset[str] | None:
        """The held ids according to both together: just after its start, a kubelet may not know all of its pods
        yet."""
        asked, why = await self._ask(resource)
        read, why_not = await self._read(resource)
        self._tell_once(asked is None and read is None, f"{why}; {why_not}")
        if asked is None and read is None:
            return None
        return (asked or frozenset()) | (read or frozenset())

    async def _ask(self, resource: str) -> tuple[frozenset[str] | None, str]:
        try:
            return held_in(await list_pods(self._paths, self._clock), resource), ""
        except Unavailable as error:
            return None, str(error)

    async def _read(self, resource: str) -> tuple[frozenset[str] | None, str]:
        file = self._paths.checkpoint
        try:
            blob = await asyncio.to_thread(file.read_bytes)
            return checkpoint.parse(blob).checkpoint.held(resource), ""
        except FileNotFoundError:
            if self._paths.device_plugins.is_dir():
                return frozenset(), ""  # A kubelet writes a checkpoint as soon as it gives out a device.
            return None, f"there is no {self._paths.device_plugins}"
        except (OSError, ColocateError) as error:
            return None, f"checkpoint: {error}"

    def _tell_once(self, unknown: bool, reason: str) -> None:
        if unknown and not self._told:
            telemetry.logger().warning(Event.HOLDERS_UNKNOWN, reason=reason, effect="no id is dropped")
        self._told = unknown


async def pods_holding(paths: KubeletPaths, clock: Clock, resource: str) -> Holdings | None:
    """Ask podresources and read the checkpoint; None where neither answers."""
    silent: list[str] = []
    listing: tuple[ListedPod, ...] | None = None
    try:
        listing = await listed_pods(paths, clock)
    except Unavailable as error:
        silent.append(str(error))
    # The checkpoint is read second: the kubelet writes it before podresources lists a device.
    entries = await asyncio.to_thread(_entries, paths, silent, listing is not None)
    if listing is None and entries is None:
        return None
    return Holdings(holdings_of(listing, entries, resource), listing is not None, tuple(silent))


def _entries(paths: KubeletPaths, silent: list[str], listed: bool) -> Sequence[Entry] | None:
    try:
        return checkpoint.parse(paths.checkpoint.read_bytes()).checkpoint.entries or ()
    except FileNotFoundError:
        if listed and paths.device_plugins.is_dir():
            return ()  # A kubelet writes a checkpoint as soon as it gives out a device.
        # It may have been removed by hand, so its absence alone proves nothing.
        silent.append(f"there is no {paths.checkpoint}")
    except (OSError, ColocateError) as error:
        silent.append(f"checkpoint: {error}")
    return None


class InjectedEntry(msgspec.Struct, frozen=True):
    """What one container holds of one resource, and what Allocate injected for it."""

    uid: str
    container: str
    resource: str
    ids: frozenset[str]
    injected: Allocation | None
    """What Allocate injected; None where the bytes cannot be read."""


class _RawEntry(msgspec.Struct, frozen=True):
    PodUID: str = ""
    ContainerName: str = ""
    ResourceName: str = ""
    DeviceIDs: dict[str, list[str] | None] | list[str] | None = None
    AllocResp: str | None = None


class _RawData(msgspec.Struct, frozen=True):
    PodDeviceEntries: list[_RawEntry] | None = None


class _RawCheckpoint(msgspec.Struct, frozen=True):
    Data: _RawData


async def injected_entries(paths: KubeletPaths, resources: Container[str]) -> tuple[InjectedEntry, ...]:
    """The checkpoint's entries for these resources; Unavailable where it cannot be read.

    It skips the checksum and the list of devices, which takes a tenth of the time: Allocate waits for the answer.
    """
    return await asyncio.to_thread(_injected_entries, paths, resources)


def _injected_entries(paths: KubeletPaths, resources: Container[str]) -> tuple[InjectedEntry, ...]:
    try:
        entries = msgspec.json.decode(
            paths.checkpoint.read_bytes(), type=_RawCheckpoint
        ).Data.PodDeviceEntries
    except FileNotFoundError:
        if paths.device_plugins.is_dir():
            return ()  # A kubelet writes a checkpoint as soon as it gives out a device.
        raise Unavailable(f"there is no {paths.device_plugins}") from None
    except OSError as error:
        raise Unavailable(f"{paths.checkpoint}: {system_reason(error)}") from error
    except (ValueError, RecursionError) as error:
        raise Unavailable(f"{paths.checkpoint} cannot be read: {error}") from error
    return tuple(_injected(entry) for entry in entries or () if entry.ResourceName in resources)


def _injected(entry: _RawEntry) -> InjectedEntry:
    listed = entry.DeviceIDs or []
    ids = chain.from_iterable(some or () for some in listed.values()) if isinstance(listed, dict) else listed
    try:
        injected = allocation.read(base64.b64decode(entry.AllocResp or "", validate=True))
    except ValueError:
        injected = None
    return InjectedEntry(entry.PodUID, entry.ContainerName, entry.ResourceName, frozenset(ids), injected)
