"""The device list on its way to the kubelet: serialised once per change, sent to whoever listens.

Many changes before a listener is ready are one message: the newest list. Each device is serialised once and
kept, so that a change to one of ten thousand costs one device and a join: a protobuf message with a repeated
field is the concatenation of messages with one element each.
"""

from collections.abc import AsyncIterator, Sequence

from colocate.aio import Watched
from colocate.crashpoints import reached
from colocate.errors import UserError
from colocate.model.device import Device
from colocate.wire import deviceplugin_pb2 as dp

MESSAGE_LIMIT = 4 << 20
"""What a kubelet receives in one message, in bytes."""


class Broadcast:
    """The newest device list of one resource, as bytes, with a generation that counts the changes."""

    def __init__(self, resource: str) -> None:
        self._resource = resource
        self._parts: dict[Device, bytes] = {}
        self._payload = b""
        self._changes = Watched()
        self._closed = False
        self._listeners: dict[object, int] = {}
        self._listening = Watched()

    @property
    def generation(self) -> int:
        """How many different lists have been published; 0 before the first."""
        return self._changes.count

    def publish(self, devices: Sequence[Device]) -> bool:
        """Make this the list that is sent. False where nothing changed; a list too long is refused."""
        payload = self._serialise(devices)
        if len(payload) > MESSAGE_LIMIT:
            raise UserError(
                f"{self._resource}: {len(devices)} devices make a message of {len(payload)} bytes and the "
                f"kubelet takes {MESSAGE_LIMIT}: {self._how_many_fit(devices)} of these would fit; "
                f"publish fewer devices or shorten their ids"
            )
        if self.generation and payload == self._payload:
            return False
        self._payload = payload
        self._changes.changed()
        return True

    async def first(self) -> None:
        """Return once there is a list."""
        await self._changes.beyond(0)

    def close(self) -> None:
        """End every stream once it has sent the newest list."""
        self._closed = True
        self._changes.changed()

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
        me = object()
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
                if self._closed and seen == self.generation:
                    return
        finally:
            del self._listeners[me]
            self._listening.changed()

    def _hear(self, listener: object, seen: int) -> None:
        self._listeners[listener] = seen
        self._listening.changed()

    def _serialise(self, devices: Sequence[Device]) -> bytes:
        parts = self._parts
        try:
            return b"".join([parts[device] for device in devices])
        except KeyError:
            if len(parts) > 2 * len(devices) + 1000:
                parts = self._parts = {device: parts[device] for device in devices if device in parts}
            for device in devices:
                if device not in parts:
                    parts[device] = _one(device)
            return b"".join([parts[device] for device in devices])

    def _how_many_fit(self, devices: Sequence[Device]) -> int:
        size = 0
        for count, device in enumerate(devices):
            size += len(self._parts[device])
            if size > MESSAGE_LIMIT:
                return count
        return len(devices)


def _one(device: Device) -> bytes:
    message = dp.ListAndWatchResponse()
    entry = message.devices.add(ID=device.id, health=device.health)
    for node in device.numa:
        entry.topology.nodes.add(ID=node)
    return message.SerializeToString()
