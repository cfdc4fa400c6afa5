"""Who may stay connected, and who is closed to make room. Pure: no sockets, no clock, no HTTP.

There are three rooms, and none takes a place of another:

    known        callers that have shown a token or a certificate
    probes       callers that ask for health
    strangers    all callers until the headers of a first request have come, and those that show nothing

A full room closes the idle connection that was used longest ago. Among strangers it closes one of the address that
has most; an address that has reached its own bound closes one of its own. So the newest connection comes in, and has
time to say what it wants. Where every connection has something under way, the room closes one that waits for its
caller to read: no caller keeps a place by asking and not reading. Where there is none, the newcomer is turned away.
"""

import ipaddress
from collections.abc import Collection
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

import msgspec

LOCAL = "this machine"
"""The address of all connections from this machine: a local user has 127.0.0.1, 127.0.0.2 and so on."""
_NETWORK = 64
"""Bits of an IPv6 address that one owner has: the rest is theirs to make up."""


class Rank(StrEnum):
    """What a connection has shown of its caller."""

    STRANGER = "stranger"
    PROBE = "probe"
    KNOWN = "known"


class PlaceLimits(msgspec.Struct, frozen=True):
    """How many connections there may be."""

    connections: int
    """Connections in all rooms together."""
    known: int = 0
    """Places for callers that have shown a token or a certificate."""
    probes: int = 0
    """Places for callers that ask for health."""
    per_address: int = 100
    """Connections of strangers from one address."""

    @property
    def strangers(self) -> int:
        return self.connections - self.known - self.probes

    def within(self, connections: int) -> "PlaceLimits":
        """These limits scaled down to so many connections."""
        if connections >= self.connections:
            return self
        return PlaceLimits(
            connections=connections,
            known=self.known * connections // self.connections,
            probes=self.probes * connections // self.connections,
            per_address=self.per_address,
        )


class Guest(Protocol):
    """A connection."""

    @property
    def spare(self) -> bool:
        """Whether nothing is under way on it."""

    @property
    def unread(self) -> bool:
        """Whether its caller does not read what is sent."""


G = TypeVar("G", bound=Guest)


class Place(msgspec.Struct, frozen=True, eq=False):
    """Where a connection is."""

    address: str
    rank: Rank


class Admission(msgspec.Struct, Generic[G], frozen=True):
    """Whether there is a place, and which connection must be closed for it."""

    admitted: bool
    closed: G | None = None


class ConnectionPlaces(Generic[G]):
    """All connections of a server. A connection that is to be closed has already left when it is named."""

    def __init__(self, limits: PlaceLimits) -> None:
        self._limits = limits
        self._places: dict[G, Place] = {}
        # Each in the order of last use, the one that was used longest ago first.
        self._strangers: dict[str, dict[G, None]] = {}
        self._rooms: dict[Rank, dict[G, None]] = {Rank.PROBE: {}, Rank.KNOWN: {}}
        self._stranger_count = 0

    def __len__(self) -> int:
        return len(self._places)

    def rank(self, guest: G) -> Rank:
        """The rank of a connection; a stranger where it has left."""
        place = self._places.get(guest)
        return Rank.STRANGER if place is None else place.rank

    def admit(self, guest: G, address: str, rank: Rank = Rank.STRANGER) -> Admission[G]:
        """A place for a new connection."""
        made = self._room_for(address, rank)
        if made.admitted:
            self._enter(guest, Place(address, rank))
        return made

    def move(self, guest: G, rank: Rank) -> Admission[G]:
        """Give a connection a place of another rank. It stays where it is if there is none, or once it is known."""
        place = self._places.get(guest)
        if place is None:
            return Admission(admitted=False)
        if rank is place.rank or place.rank is Rank.KNOWN:
            self.used(guest)
            return Admission(admitted=True)
        made = self._room_for(place.address, rank)
        if made.admitted:
            self.leave(guest)
            self._enter(guest, Place(place.address, rank))
        return made

    def used(self, guest: G) -> None:
        """Note that a request has just come on it."""
        place = self._places.get(guest)
        if place is not None:
            room = self._room(place)
            del room[guest]
            room[guest] = None

    def leave(self, guest: G) -> None:
        """Remove a closed connection; may be called twice."""
        place = self._places.pop(guest, None)
        if place is None:
            return
        room = self._room(place)
        del room[guest]
        if place.rank is Rank.STRANGER:
            self._stranger_count -= 1
            if not room:
                del self._strangers[place.address]

    def close_a_spare(self) -> G | None:
        """Any stranger or probe that can be spared, for a process that has run out of open files."""
        found = self._spare_of_the_greatest()
        if found is None:
            found = _first_spare(self._rooms[Rank.PROBE])
        if found is not None:
            self.leave(found)
        return found

    def _enter(self, guest: G, place: Place) -> None:
        self._places[guest] = place
        if place.rank is Rank.STRANGER:
            self._stranger_count += 1
            self._strangers.setdefault(place.address, {})
        self._room(place)[guest] = None

    def _room(self, place: Place) -> dict[G, None]:
        return self._strangers[place.address] if place.rank is Rank.STRANGER else self._rooms[place.rank]

    def _room_for(self, address: str, rank: Rank) -> Admission[G]:
        closed: G | None
        if rank is Rank.STRANGER:
            own = self._strangers.get(address, {})
            if len(own) >= self._limits.per_address:
                closed = _first_spare(own)
            elif self._stranger_count >= self._limits.strangers:
                closed = self._spare_of_the_greatest()
            else:
                return Admission(admitted=True)
        else:
            room = self._rooms[rank]
            if len(room) < (self._limits.known if rank is Rank.KNOWN else self._limits.probes):
                return Admission(admitted=True)
            closed = _first_spare(room)
        if closed is None:
            return Admission(admitted=False)
        self.leave(closed)
        return Admission(admitted=True, closed=closed)

    def _spare_of_the_greatest(self) -> G | None:
        by_size = sorted(self._strangers.values(), key=len, reverse=True)
        return _first_spare([guest for room in by_size for guest in room])


def address_of(peer: object) -> str:
    """The address that a connection counts for, by its peer name: all addresses of one owner are one."""
    if not isinstance(peer, tuple) or not peer:
        # A unix socket is on this machine.
        return LOCAL
    try:
        found = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    except ValueError:
        return str(peer[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is None:
            network = ipaddress.ip_network((found, _NETWORK), strict=False)
            return LOCAL if found.is_loopback else str(network)
        found = found.ipv4_mapped
    return LOCAL if found.is_loopback else str(found)


def _first_spare(room: Collection[G]) -> G | None:
    spare = next((guest for guest in room if guest.spare), None)
    return spare if spare is not None else next((guest for guest in room if guest.unread), None)
