"""Sends the device list to the kubelet: serialised once per change, sent to every open stream.

Several changes before a stream is ready become one message: the newest list. The list is kept serialised in chunks,
so that a change to one of ten thousand devices costs one chunk and a join: a protobuf message with a repeated field
is the concatenation of messages that each have a part of the field.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from colocate.aio import Watched
from colocate.crashpoints import reached
from colocate.errors import UserError
from colocate.kubelet.settings import MESSAGE_LIMIT
from colocate.model.device import Device, Health
from colocate.wire import deviceplugin_pb2 as dp

_CHUNK = 32


class Broadcast:
    """The newest device list of one resource, as bytes, with a generation that counts the changes."""

    def __init__(self, resource: str) -> None:
        self._resource = resource
        self._listed: list[Device] = []
        self._chunks: list[bytes] = []
        self._payload = b""
        self._changes = Watched()
        self._calls = 0
        self.opened = 0
        """How many streams have been opened so far."""
        self._listeners: dict[object, int] = {}
        self._listening = Watched()

    @property
    def generation(self) -> int:
        """How many different lists have been published; 0 before the first."""
        return self._changes.count

    def publish(
        self,
        listed: list[Device],
        leaving: Sequence[Device] = (),
        changed: Sequence[int] | None = None,
    ) -> bool:
        """Make this the list that is sent. False where nothing changed; UserError where the list is too long.

        `changed` has the indexes where `listed` differs from the previous list, or None where they are not known.
        The caller must not change `listed` afterwards.
        """
        chunks = self._serialise(listed, changed)
        payload = b"".join([*chunks, _message(leaving)] if leaving else chunks)
        if len(payload) > MESSAGE_LIMIT:
            count = len(listed) + len(leaving)
            raise UserError(
                f"{self._resource}: {count} devices make a message of {len(payload)} bytes, but the kubelet "
                f"accepts {MESSAGE_LIMIT}: {how_many_fit([*listed, *leaving])} of these would fit; "
                f"publish fewer devices or shorten their ids"
            )
        self._listed, self._chunks = listed, chunks
        if self.generation and payload == self._payload:
            return False
        self._payload = payload
        self._changes.changed()
        return True

    async def hang_up(self) -> None:
        """End every open stream once it has sent the newest list, including streams that open meanwhile.

        Returns once none is open; streams that open later are served.
        """
        while self._listeners:
            self._calls += 1
            self._changes.changed()
            await self._listening.beyond(self._listening.count)

    @property
    def listeners(self) -> int:
        """How many streams are open."""
        return len(self._listeners)

    @property
    def taken(self) -> bool:
        """Whether every open stream has sent the newest list."""
        return all(seen == self.generation for seen in self._listeners.values())

    async def all_taken(self) -> None:
        """Return once every open stream has sent the newest list."""
        while not self.taken:
            await self._listening.beyond(self._listening.count)

    async def listened(self) -> None:
        """Return once a stream is open."""
        while not self._listeners:
            await self._listening.beyond(self._listening.count)

    async def abandoned(self) -> None:
        """Return once no stream is open."""
        while self._listeners:
            await self._listening.beyond(self._listening.count)

    async def lists(self) -> AsyncIterator[bytes]:
        """The newest list now, and again whenever it changes."""
        me, call = object(), self._calls
        self.opened += 1
        self._hear(me, 0)
        try:
            sent = None
            while True:
                seen = await self._changes.beyond(self._listeners[me])
                if sent is None or self._payload != sent:
                    sent = self._payload
                    reached("list.send")
                    yield sent
                    reached("list.sent")
                self._hear(me, seen)
                if call != self._calls and seen == self.generation:
                    return
        finally:
            del self._listeners[me]
            self._listening.changed()

    def _hear(self, listener: object, seen: int) -> None:
        self._listeners[listener] = seen
        self._listening.changed()

    def _serialise(self, listed: list[Device], changed: Sequence[int] | None) -> list[bytes]:
        if changed is not None and len(listed) == len(self._listed):
            chunks = self._chunks.copy()
            for chunk in {place // _CHUNK for place in changed}:
                chunks[chunk] = _message(listed[chunk * _CHUNK : (chunk + 1) * _CHUNK])
            return chunks
        chunks = []
        for chunk, start in enumerate(range(0, len(listed), _CHUNK)):
            devices = listed[start : start + _CHUNK]
            same = chunk < len(self._chunks) and devices == self._listed[start : start + _CHUNK]
            chunks.append(self._chunks[chunk] if same else _message(devices))
        return chunks


def how_many_fit(devices: Sequence[Device]) -> int:
    """How many of these devices, from the first on, fit into a message that a kubelet accepts."""
    size = 0
    for count, device in enumerate(devices):
        size += len(_message([device]))
        if size > MESSAGE_LIMIT:
            return count
    return len(devices)


def _message(devices: Sequence[Device]) -> bytes:
    message = dp.ListAndWatchResponse()
    add = message.devices.add
    for device in devices:
        # Almost every device is plain; only the others are checked further.
        if (
            device.numa != ()
            or type(device.id) is not str
            or type(device.health) is not Health
            or not device.id
        ):
            _check(device)
        entry = add(ID=device.id, health=device.health)
        for node in device.numa:
            entry.topology.nodes.add(ID=node)
    return message.SerializeToString()


def _check(device: Any) -> None:
    """Refuse a device that a kubelet could not handle: structs do not check the types of their fields."""
    wrong = ""
    if not isinstance(device.id, str) or not device.id:
        wrong = "its id must be a text that is not empty"
    elif device.health not in (Health.HEALTHY, Health.UNHEALTHY):
        wrong = "its health must be Health.HEALTHY or Health.UNHEALTHY"
    elif not isinstance(device.numa, tuple) or not all(
        isinstance(node, int) and 0 <= node < 1 << 31 for node in device.numa
    ):
        wrong = "its NUMA nodes must be a tuple of numbers from 0 on, such as (0,)"
    if wrong:
        raise ValueError(f"{device!r:.200} cannot be listed: {wrong}")
