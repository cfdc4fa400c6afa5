"""What is put on a shelf is there until it had to make room, and never anything else in its place."""

from hypothesis import given
from hypothesis import strategies as st

from colocate.load.history import Shelf


@given(room=st.integers(0, 60), put=st.lists(st.binary(max_size=30)))
def test_what_is_kept_is_what_was_put_and_the_youngest_stay(room: int, put: list[bytes]) -> None:
    shelf = Shelf(room)
    places = [(shelf.put(data), data) for data in put]
    held = 0
    for place, data in reversed(places):
        if place is None:
            assert len(data) > room, "there is room for whatever is not larger than the shelf"
            continue
        found = shelf.get(place, len(data))
        assert found in (data, None)
        # What does not fit before the end of the block begins at its start: no more is lost than by one of them.
        held += len(data)
        if held + max(map(len, put)) <= room:
            assert found == data
