"""What Prometheus answers to an instant query, read with care: one odd series does not spoil the others. Pure.

Of an answer its bytes are kept, and series are made of them some at a time: as objects all together they would be
many times as large, and nonsense forty times. A stretch without a series in it is passed over as one that is odd.
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
    """Any number, also none and infinite ones."""

    @property
    def shown_labels(self) -> dict[str, str]:
        """For people, in logs and reports: some of them, and none whole that is longer than any name of a node."""
        some = islice(self.labels.items(), _MOST_LABELS)
        return {name[:LONGEST_LABEL]: text[:LONGEST_LABEL] for name, text in some}


LONGEST_LABEL = 256
"""Characters of a label's name, and of its text, that are shown."""
_MOST_LABELS = 32
_PIECE = 64 << 10
"""Bytes of an answer that are made into series at a time."""
_LONGEST_PIECE = 256 << 10
"""Where no other series begins in so many, what is there is none."""
_LEAST = 29
"""Bytes of a series without labels: a piece that has more parts than this allows is made of something else."""
_MOST_ODD = 10_000
"""Series of an answer that cannot be read, each of which takes as long as many that can: after so many the rest is
passed over, a piece at a time."""
_BETWEEN = re.compile(rb'\}\s*(,)\s*\{\s*"(?:metric|value)"')
"""Where one series ends and another begins. It cannot be within a text: the quote that follows the brace would end
it, and no name follows the end of a text."""
_MOST_SAID = 300
"""Characters of what Prometheus says of itself; and so much of it is kept."""
_NOTES = 64 << 10
"""Bytes of all warnings together."""


class Vector(msgspec.Struct, frozen=True):
    """The series of an answer, as they came; they are read anew by whoever goes through them."""

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
        # Not even odd series: it would take longer to look at each than all of an answer.
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
