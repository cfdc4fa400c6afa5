"""Who holds which devices: podresources is asked, and the checkpoint read. `model.holdings` joins what they say.

`Holders` answers which ids of a resource are held, for the SDK; `pods_holding` by whom, for whoever acts on pods;
`injected_entries` with what Allocate answered them, for whoever checks that.
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
    """Answers which ids of a resource are held; None where nobody can say."""

    def __init__(self, paths: KubeletPaths, clock: Clock) -> None:
        self._paths = paths
        self._clock = clock
        self._told = False

    async def held(self, resource: str) -> frozenset[str] | None:
        """By the kubelet's own word, or, where that is not to be had, by its checkpoint."""
        asked, why = await self._ask(resource)
        if asked is not None:
            return asked
        read, why_not = await self._read(resource)
        self._tell_once(read is None, f"{why}; {why_not}")
        return read

    async def ever_held(self, resource: str) -> frozenset[str] | None:
        """By both together: just after its start a kubelet may not know all of its pods yet."""
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
                return frozenset(), ""  # A kubelet that has given out a device has written it down.
            return None, f"there is no {self._paths.device_plugins}"
        except (OSError, ColocateError) as error:
            return None, f"checkpoint: {error}"

    def _tell_once(self, unknown: bool, reason: str) -> None:
        if unknown and not self._told:
            telemetry.logger().warning(Event.HOLDERS_UNKNOWN, reason=reason, effect="no id is dropped")
        self._told = unknown


async def pods_holding(paths: KubeletPaths, clock: Clock, resource: str) -> Holdings | None:
    """Ask both sources; None where neither answers."""
    silent: list[str] = []
    listing: tuple[ListedPod, ...] | None = None
    try:
        listing = await listed_pods(paths, clock)
    except Unavailable as error:
        silent.append(str(error))
    # The checkpoint second: what podresources lists has been written there before.
    entries = await asyncio.to_thread(_entries, paths, silent, listing is not None)
    if listing is None and entries is None:
        return None
    return Holdings(holdings_of(listing, entries, resource), listing is not None, tuple(silent))


def _entries(paths: KubeletPaths, silent: list[str], listed: bool) -> Sequence[Entry] | None:
    try:
        return checkpoint.parse(paths.checkpoint.read_bytes()).checkpoint.entries or ()
    except FileNotFoundError:
        if listed and paths.device_plugins.is_dir():
            return ()  # A kubelet that has given out a device has written it down.
        # Somebody may have removed it: alone, that it is not there says nothing.
        silent.append(f"there is no {paths.checkpoint}")
    except (OSError, ColocateError) as error:
        silent.append(f"checkpoint: {error}")
    return None


class InjectedEntry(msgspec.Struct, frozen=True):
    """What one container holds of one resource, and what it is started with for it."""

    uid: str
    container: str
    resource: str
    ids: frozenset[str]
    injected: Allocation | None
    """None where the bytes cannot be read."""


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
    """What the checkpoint says of these resources; Unavailable says why it says nothing.

    Read without its checksum and its list of devices, which takes a tenth of the time: Allocate waits for it.
    """
    return await asyncio.to_thread(_injected_entries, paths, resources)


def _injected_entries(paths: KubeletPaths, resources: Container[str]) -> tuple[InjectedEntry, ...]:
    try:
        entries = msgspec.json.decode(
            paths.checkpoint.read_bytes(), type=_RawCheckpoint
        ).Data.PodDeviceEntries
    except FileNotFoundError:
        if paths.device_plugins.is_dir():
            return ()  # A kubelet that has given out a device has written it down.
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
