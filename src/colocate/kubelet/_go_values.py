"""Decodes a JSON tree as Go's encoding/json does: into strings, numbers, slices, maps and structs. See `_gojson`.

Names match in upper or lower case, a repeated name decodes over the value already there, null leaves a string
unchanged.

No I/O, and no knowledge of checkpoints.
"""

from collections.abc import Callable, Mapping, MutableSequence
from typing import Any, Generic, TypeAlias, TypeVar

from colocate.kubelet._gojson import Array, Json, Object
from colocate.kubelet._gotext import fold, from_base64, parse_int64

T = TypeVar("T")
K = TypeVar("K")

# Takes the JSON value and the value already there, because Go decodes into existing memory.
Decoder: TypeAlias = Callable[[Json, T], T]


class Mismatch(Exception):
    """Valid JSON, but of the wrong type; holds the path of the value that does not fit."""

    def __init__(self, wanted: str, found: Json) -> None:
        self.path = ""
        self.wanted = wanted
        self.found = _describe(found)
        super().__init__()

    def within(self, step: str) -> "Mismatch":
        """Add a step to the front of the path, while the error passes the decoders."""
        self.path = step + self.path
        return self

    def __str__(self) -> str:
        return f"{self.path.lstrip('.') or 'the document'} should be {self.wanted} but is {self.found}"


def _describe(value: Json) -> str:
    if isinstance(value, bytes):
        text = value.decode("ascii")
        return f"the number {text[:40]}{'…' if len(text) > 40 else ''}"
    if isinstance(value, str):
        return f"the string {value[:40]!r}{'…' if len(value) > 40 else ''}"
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "null"
    return "a list" if isinstance(value, Array) else "an object"


class Slice(Generic[T]):
    """A Go slice: earlier elements stay in memory behind its end, and reappear when it grows again."""

    __slots__ = ("backing", "length")

    def __init__(self, backing: MutableSequence[T], length: int) -> None:
        self.backing = backing
        self.length = length

    @property
    def values(self) -> MutableSequence[T]:
        return self.backing[: self.length]


def string(value: Json, old: str) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return old
    raise Mismatch("a string", value)


def uint(bits: int) -> Decoder[int]:
    """Decode digits only: 1.0 and 1e0 are refused, and so is a number that does not fit into the bits."""
    longest = len(str(2**bits))

    def decode(value: Json, old: int) -> int:
        if value is None:
            return old
        if isinstance(value, bytes) and value.isdigit() and len(value) <= longest:
            number = int(value)
            if number < 2**bits:
                return number
        raise Mismatch(f"a whole number from 0 to 2^{bits}-1", value)

    return decode


def int64_key(name: str) -> int:
    number = parse_int64(name)
    if number is None:
        raise Mismatch("named by a whole number of 64 bits", name)
    return number


def string_key(name: str) -> str:
    return name


def slice_of(element: Decoder[T], zero: Callable[[], T]) -> Decoder[Slice[T] | None]:
    """Null is a nil slice; a list decodes over the elements already there, and drops the rest."""

    def decode(value: Json, old: Slice[T] | None) -> Slice[T] | None:
        if value is None:
            return None
        if not isinstance(value, Array):
            raise Mismatch("a list", value)
        backing: MutableSequence[T] = old.backing if old and value else []
        known = len(backing)
        for i, item in enumerate(value):
            try:
                if i < known:
                    backing[i] = element(item, backing[i])
                else:
                    backing.append(element(item, zero()))
            except Mismatch as mismatch:
                raise mismatch.within(f"[{i}]") from None
        return Slice(backing, len(value))

    return decode


def map_of(key: Callable[[str], K], element: Decoder[T], zero: Callable[[], T]) -> Decoder[dict[K, T] | None]:
    """Null is a nil map; an object adds to the entries already there, but never merges into a value."""

    def decode(value: Json, old: dict[K, T] | None) -> dict[K, T] | None:
        if value is None:
            return None
        if not isinstance(value, Object):
            raise Mismatch("an object", value)
        result = {} if old is None else old
        for name, item in value:
            try:
                result[key(name)] = element(item, zero())
            except Mismatch as mismatch:
                raise mismatch.within(f"[{name[:40]!r}]") from None
        return result

    return decode


class Struct:
    """What an object is decoded into."""

    def __init__(self) -> None:
        self.unknown: list[str] = []
        """Names in the object for which there is no field."""


def struct_of(fields: Mapping[str, tuple[str, Decoder[Any]]]) -> Decoder[Any]:
    """Decode into the attributes of a Struct: fields is {Go's name: (attribute, decoder)}.

    Null changes nothing, an unknown name is ignored, a repeated name decodes over the value already there.
    """
    folded = {fold(name): (name, *rest) for name, rest in fields.items()}

    def decode(value: Json, old: Any) -> Any:
        if value is None:
            return old
        if not isinstance(value, Object):
            raise Mismatch("an object", value)
        for name, item in value:
            field = folded.get(fold(name))
            if field is None:
                old.unknown.append(name)
                continue
            known_as, attribute, decoder = field
            try:
                setattr(old, attribute, decoder(item, getattr(old, attribute)))
            except Mismatch as mismatch:
                raise mismatch.within(f".{known_as}") from None
        return old

    return decode


_byte_list = slice_of(uint(8), int)


def byte_slice(value: Json, old: Slice[int] | None) -> Slice[int] | None:
    """Decode base64 with padding, ignoring line breaks; or, as Go also accepts, a list of small numbers."""
    if value is None or isinstance(value, Array):
        return _byte_list(value, old)
    if isinstance(value, str):
        decoded = from_base64(value)
        if decoded is not None:
            return Slice(bytearray(decoded), len(decoded))
    raise Mismatch("base64 with padding", value)
