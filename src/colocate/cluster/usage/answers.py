"""What Prometheus answers to an instant query, read with care: one odd series does not spoil the others. Pure."""

from collections.abc import Iterator

import msgspec

from colocate.cluster.errors import Doing, ServerError, Status, unreadable


class Series(msgspec.Struct, frozen=True):
    """One series at one moment."""

    labels: dict[str, str]
    time: float
    """When the query was evaluated, on Prometheus' clock."""
    value: float
    """Any number, also none and infinite ones."""


class Vector(msgspec.Struct, frozen=True):
    """The series of an answer, as they came: they are read one after the other, for there may be many."""

    raw: tuple[msgspec.Raw, ...]
    warnings: tuple[str, ...] = ()
    """What Prometheus says about its own answer: a part is missing, or the query is doubtful."""

    def __iter__(self) -> "Iterator[Series | None]":
        """Each series; None for one that cannot be read."""
        return (_series(one) for one in self.raw)


class _Data(msgspec.Struct, frozen=True):
    resultType: str = ""
    result: msgspec.Raw = msgspec.Raw(b"null")


class _Answer(msgspec.Struct, frozen=True):
    status: str = ""
    data: _Data | None = None
    errorType: str = ""
    error: str = ""
    warnings: list[str] | None = None
    infos: list[str] | None = None


class _Series(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    value: tuple[float, str | float]


def decode(doing: Doing, body: bytes) -> Vector:
    """The answer's vector; a ServerError says what it is instead."""
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except (ValueError, RecursionError) as error:
        raise unreadable(doing, f"{error}{_shown(body)}") from error
    if answer.status == "error":
        raise ServerError(doing, Status(answer.error or answer.errorType, answer.errorType, 200))
    if answer.status != "success" or answer.data is None:
        raise unreadable(doing, f"it is none of Prometheus{_shown(body)}")
    if answer.data.resultType != "vector":
        raise unreadable(doing, _other_type(answer.data.resultType))
    try:
        found = msgspec.json.decode(answer.data.result, type=list[msgspec.Raw] | None) or []
    except (ValueError, RecursionError) as error:
        raise unreadable(doing, f"its result is no list: {error}") from error
    return Vector(tuple(found), (*(answer.warnings or ()), *(answer.infos or ())))


def _series(raw: msgspec.Raw) -> Series | None:
    try:
        read = msgspec.json.decode(raw, type=_Series)
        time, value = read.value
        return Series(read.metric, time, float(value))
    except (ValueError, RecursionError):
        return None


def _other_type(found: str) -> str:
    match found:
        case "matrix":
            return (
                "it is a matrix; the query must not end in a range such as [5m]: wrap it in avg_over_time()"
            )
        case "scalar" | "string":
            return f"it is a {found}, and of no node; the query must answer with one series for each node"
    return f"its resultType is {found!r} and not vector"


def _shown(body: bytes) -> str:
    text = " ".join(body[:120].decode("utf-8", "replace").split())
    return f": {text}" if text else ", it is empty"
