"""Who has a place on a port, and who makes room: no crowd of strangers keeps out a known caller, or a probe."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.http.places import LOCAL, ConnectionPlaces, PlaceLimits, Rank, address_of

LIMITS = PlaceLimits(connections=10, known=4, probes=2, per_address=3)


class Visitor:
    def __init__(self, name: str = "", *, spare: bool = True, unread: bool = False) -> None:
        self.name = name
        self.spare = spare
        self.unread = unread

    def __repr__(self) -> str:
        return self.name


def test_a_crowd_from_one_address_pushes_out_only_itself() -> None:
    places: ConnectionPlaces[Visitor] = ConnectionPlaces(PlaceLimits(connections=100, per_address=3))
    other, crowd = Visitor("other"), [Visitor(str(number)) for number in range(50)]
    assert places.admit(other, "b").admitted
    closed = [places.admit(one, "a").closed for one in crowd]
    assert closed == [None] * 3 + crowd[:-3], "the one that was used longest ago goes"
    assert len(places) == 4


def test_a_crowd_from_many_addresses_pushes_out_whoever_has_most() -> None:
    places: ConnectionPlaces[Visitor] = ConnectionPlaces(PlaceLimits(connections=10, per_address=6))
    alone = Visitor("alone")
    places.admit(alone, "kubelet")
    for address in "abc":
        for _ in range(30):
            assert places.admit(Visitor(), address).closed is not alone
    assert len(places) == 10


def test_no_stranger_takes_a_place_of_a_known_caller_or_of_a_probe() -> None:
    places: ConnectionPlaces[Visitor] = ConnectionPlaces(LIMITS)
    for number in range(100):
        places.admit(Visitor(), f"address {number}")
    for rank, most in ((Rank.KNOWN, LIMITS.known), (Rank.PROBE, LIMITS.probes)):
        for _ in range(most):
            comer = Visitor()
            assert places.admit(comer, "kube-scheduler").admitted
            made = places.move(comer, rank)
            assert (made.admitted, made.closed) == (True, None)
            assert places.rank(comer) is rank
    assert places.move(Visitor(), Rank.KNOWN).admitted is False, "whoever was never let in has no place"


def test_a_connection_with_something_under_way_is_not_closed_for_another() -> None:
    places: ConnectionPlaces[Visitor] = ConnectionPlaces(LIMITS)
    busy = [Visitor(spare=False) for _ in range(3)]
    for one in busy:
        assert places.admit(one, "a").admitted
    assert not places.admit(Visitor(), "a").admitted
    busy[1].spare = True
    assert places.admit(Visitor(), "a").closed is busy[1]


def test_callers_at_two_addresses_that_do_not_read_their_answers_keep_nobody_out() -> None:
    places: ConnectionPlaces[Visitor] = ConnectionPlaces(PlaceLimits(connections=64, per_address=32))
    scraper = Visitor("scraper", spare=False)
    places.admit(scraper, "c")
    for address in "ab":
        for _ in range(100):
            places.admit(Visitor(address, spare=False, unread=True), address)
    for address in "abcd":
        comer = Visitor(f"comer at {address}", spare=False)
        made = places.admit(comer, address)
        assert made.admitted
        assert made.closed is None or made.closed.unread, "who reads is not closed"
    assert places.rank(scraper) is Rank.STRANGER
    assert scraper not in [places.close_a_spare() for _ in range(100)]


def test_a_caller_that_is_known_stays_so_when_it_asks_for_health() -> None:
    places: ConnectionPlaces[Visitor] = ConnectionPlaces(LIMITS)
    caller = Visitor()
    places.admit(caller, "a")
    places.move(caller, Rank.KNOWN)
    assert places.move(caller, Rank.PROBE).admitted
    assert places.rank(caller) is Rank.KNOWN


def test_what_was_used_last_is_closed_last() -> None:
    places: ConnectionPlaces[Visitor] = ConnectionPlaces(LIMITS)
    first, second, third = (Visitor(name) for name in ("first", "second", "third"))
    for one in (first, second, third):
        places.admit(one, "a")
    places.used(first)
    assert places.admit(Visitor(), "a").closed is second


def test_a_process_without_open_files_spares_a_stranger_then_a_probe_and_no_known_caller() -> None:
    places: ConnectionPlaces[Visitor] = ConnectionPlaces(LIMITS)
    stranger, probe, known = (Visitor(name) for name in ("stranger", "probe", "known"))
    for one, rank in ((stranger, Rank.STRANGER), (probe, Rank.PROBE), (known, Rank.KNOWN)):
        places.admit(one, "a", rank)
    assert [places.close_a_spare() for _ in range(3)] == [stranger, probe, None]


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["admit", "known", "probe", "busy", "leave"]), st.integers(0, 30), st.integers(0, 5)
    ),
    max_size=150,
)


@given(steps=_STEPS)
def test_whatever_happens_no_room_has_more_than_its_places(steps: list[tuple[str, int, int]]) -> None:
    places: ConnectionPlaces[Visitor] = ConnectionPlaces(LIMITS)
    inside: dict[Visitor, str] = {}
    for what, number, address in steps:
        one = list(inside)[number % len(inside)] if inside else None
        made = None
        if what == "admit":
            comer = Visitor(str(len(inside)))
            made = places.admit(comer, f"address {address}")
            if made.admitted:
                inside[comer] = f"address {address}"
        elif one is not None and what == "busy":
            one.spare = not one.spare
        elif one is not None and what == "leave":
            places.leave(one)
            del inside[one]
        elif one is not None:
            made = places.move(one, Rank(what))
        if made is not None and made.closed is not None:
            assert made.closed.spare or made.closed.unread
            del inside[made.closed]
        assert len(places) == len(inside) <= LIMITS.connections
        ranks = [places.rank(guest) for guest in inside]
        assert ranks.count(Rank.KNOWN) <= LIMITS.known
        assert ranks.count(Rank.PROBE) <= LIMITS.probes
        strangers = [inside[guest] for guest in inside if places.rank(guest) is Rank.STRANGER]
        assert len(strangers) <= LIMITS.strangers
        assert all(strangers.count(address) <= LIMITS.per_address for address in set(strangers))


@given(connections=st.integers(1, 3000))
def test_fewer_places_are_shared_out_alike(connections: int) -> None:
    limits = PlaceLimits(connections=2000, known=1000, probes=50).within(connections)
    assert limits.connections == min(connections, 2000)
    assert limits.strangers >= 1
    assert msgspec.structs.replace(limits, connections=2000, known=1000, probes=50) == PlaceLimits(
        2000, 1000, 50
    )


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        (("10.0.0.1", 1), "10.0.0.1"),
        (("127.0.0.1", 1), LOCAL),
        (("127.13.1.2", 1), LOCAL),
        (("::1", 1, 0, 0), LOCAL),
        (("::ffff:127.0.0.3", 1, 0, 0), LOCAL),
        (("::ffff:10.0.0.1", 1, 0, 0), "10.0.0.1"),
        (("2001:db8:1:2:aaaa::1", 1, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:2:bbbb::2", 1, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 1, 0, 2), "fe80::/64"),
        ("", LOCAL),
        (None, LOCAL),
    ],
)
def test_addresses_that_one_owner_can_make_up_are_one(peer: object, address: str) -> None:
    assert address_of(peer) == address
