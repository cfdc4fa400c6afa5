"""What Prometheus answers to an instant query, read with care: one odd series does not spoil the others. Pure.

The bytes of an answer are kept, and decoded into series a piece at a time: decoded at once, the objects would take
many times the memory, and hostile answers forty times. A piece that holds no series counts as one odd series.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

import msgspec

from colocate.cluster.errors import ApiStatus, Doing, ServerError, unreadable


class Series(msgspec.Struct, frozen=True):
    """One series at one moment."""

    labels: dict[str, str]
    time: float
    """When the query was evaluated, on Prometheus' clock."""
    value: float
    """Any float, NaN and infinity included."""

    @property
    def shown_labels(self) -> dict[str, str]:
        """Some labels, shortened, for logs and reports."""
        some = islice(self.labels.items(), _MOST_LABELS)
        return {name[:LONGEST_LABEL]: text[:LONGEST_LABEL] for name, text in some}


LONGEST_LABEL = 256
"""Characters of a label's name, and of its text, that are shown."""
_MOST_LABELS = 32
_PIECE = 64 << 10
"""Bytes of an answer that are decoded at a time."""
_LONGEST_PIECE = 256 << 10
"""Bytes: a longer piece is not decoded, as no series is that long."""
_LEAST = 29
"""Bytes of a series without labels: a piece with more elements than fit at this size holds no series."""
_MOST_ODD = 10_000
"""Unreadable series after which the rest of an answer is skipped piece by piece: each takes as long as many readable
ones."""
_BETWEEN = re.compile(rb'\}\s*(,)\s*\{\s*"(?:metric|value)"')
"""The border between two series. It cannot occur inside a string: the quote would end the string, and a name cannot
follow that."""
_MOST_SAID = 300
"""Characters of an error or warning that are kept."""
_NOTES = 64 << 10
"""Bytes of all warnings together."""


class Vector(msgspec.Struct, frozen=True):
    """The series of an answer as bytes; each iteration decodes them again."""

    result: msgspec.Raw
    """A list, in JSON."""
    warnings: tuple[str, ...] = ()
    """What Prometheus says about its own answer: a part is missing, or the query is doubtful."""

    def __iter__(self) -> "Iterator[Series | None]":
        """Each series; None for one that cannot be read."""
        whole = memoryview(self.result)[1:-1]
        odd = 0
        for begin, end in _pieces(whole):
            if end - begin > _LONGEST_PIECE or odd > _MOST_ODD:
                yield None
                continue
            for series in _some(b"".join((b"[", whole[begin:end], b"]"))):
                odd += series is None
                yield series


class _Data(msgspec.Struct, frozen=True):
    resultType: str = ""
    result: msgspec.Raw = msgspec.Raw(b"null")


class _Answer(msgspec.Struct, frozen=True):
    status: str = ""
    data: _Data | None = None
    errorType: str = ""
    error: str = ""
    warnings: msgspec.Raw = msgspec.Raw(b"null")
    infos: msgspec.Raw = msgspec.Raw(b"null")


class _Series(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    value: tuple[float, str | float]


_all_sound = msgspec.json.Decoder(list[_Series])
_one_by_one = msgspec.json.Decoder(list[msgspec.Raw])
_one = msgspec.json.Decoder(_Series)
_texts = msgspec.json.Decoder(list[str] | None)


def decode(doing: Doing, body: bytes) -> Vector:
    """The answer's vector; a ServerError says what it is instead."""
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except (ValueError, RecursionError) as error:
        raise unreadable(doing, f"{error}{_shown(body)}") from error
    if answer.status == "error":
        said = (answer.error or answer.errorType)[:_MOST_SAID]
        raise ServerError(doing, ApiStatus(said, answer.errorType[:_MOST_SAID], 200))
    if answer.status != "success" or answer.data is None:
        raise unreadable(doing, f"it is not from Prometheus{_shown(body)}")
    if answer.data.resultType != "vector":
        raise unreadable(doing, _other_type(answer.data.resultType[:_MOST_SAID]))
    result = answer.data.result
    beginning = bytes(memoryview(result)[:_LONGEST_PIECE])
    if beginning == b"null":
        result = msgspec.Raw(b"[]")
    elif not beginning.startswith(b"["):
        raise unreadable(doing, f"its result is not a list{_shown(beginning)}")
    elif len(memoryview(result)) > _LONGEST_PIECE and not _BETWEEN.search(beginning):
        raise unreadable(doing, f"its result is not a list of series{_shown(beginning)}")
    return Vector(result, (*_notes(doing, answer.warnings), *_notes(doing, answer.infos)))


def _notes(doing: Doing, sent: msgspec.Raw) -> tuple[str, ...]:
    if len(memoryview(sent)) > _NOTES:
        return (f"more than can be shown: {bytes(memoryview(sent)[:_MOST_SAID]).decode(errors='replace')}",)
    try:
        return tuple(text[:_MOST_SAID] for text in _texts.decode(sent) or ())
    except (ValueError, RecursionError) as error:
        raise unreadable(doing, f"its warnings are not texts: {error}") from error


def _pieces(whole: memoryview) -> Iterator[tuple[int, int]]:
    """Where to cut: between two series, and about so many bytes apart."""
    begin = 0
    while found := _BETWEEN.search(whole, begin + _PIECE):
        yield begin, found.start(1)
        begin = found.end(1)
    yield begin, len(whole)


def _some(piece: bytes) -> Iterator[Series | None]:
    with suppress(ValueError, RecursionError):
        yield from map(_series, _all_sound.decode(piece))
        return
    parts: list[msgspec.Raw] = []
    with suppress(ValueError, RecursionError):
        parts = _one_by_one.decode(piece)
    if len(parts) > len(piece) // _LEAST + 10 or not parts:
        # No series at all: decoding each element would take longer than a whole answer.
        yield None
        return
    for part in parts:
        try:
            yield _series(_one.decode(part))
        except (ValueError, RecursionError):
            yield None


def _series(read: _Series) -> Series | None:
    time, value = read.value
    try:
        return Series(read.metric, time, float(value))
    except ValueError:
        return None


def _other_type(found: str) -> str:
    match found:
        case "matrix":
            return (
                "it is a matrix; the query must not end in a range such as [5m]: wrap it in avg_over_time()"
            )
        case "scalar" | "string":
            return (
                f"it is a {found}, which belongs to no node; the query must return one series for each node"
            )
    return f"its resultType is {found!r} and not vector"


def _shown(body: bytes) -> str:
    text = " ".join(body[:120].decode("utf-8", "replace").split())
    return f": {text}" if text else ", it is empty"
