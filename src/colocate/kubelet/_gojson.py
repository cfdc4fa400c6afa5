"""JSON as Go's encoding/json understands it: reads bytes, then decodes them into Go-like values.

The kubelet reads its own files with that package, so whether a file loads is decided by its habits: names
match in any case, a repeated name decodes over what is already there, null leaves a string as it is, bytes
that are not UTF-8 turn into U+FFFD. Python's json module has other habits; hence a reader of our own. It is
one regular expression per token and one stack, so its cost is linear and depth costs no recursion.

No I/O, and no knowledge of checkpoints.
"""

import codecs
import re
from collections.abc import Callable, Mapping, MutableSequence
from typing import Any, Generic, TypeAlias, TypeVar

from colocate.kubelet._gotext import fold, from_base64, from_utf8, parse_int64, unescape

MAX_DEPTH = 10_000  # where Go stops, too

T = TypeVar("T")
K = TypeVar("K")


class Array(list["Json"]):
    """A JSON array."""


class Object(list[tuple[str, "Json"]]):
    """A JSON object: its members in the order of the file, repeated names and all."""


# A number stays the literal that was read: 1.0, 1e0 and 1 differ for whoever wants an integer.
Json: TypeAlias = "bool | str | bytes | Array | Object | None"

# Takes what was read and the value that is already there, as Go decodes into existing memory.
Decoder: TypeAlias = Callable[[Json, T], T]


class Malformed(Exception):
    """The bytes are not JSON."""

    def __init__(self, what: str, blob: bytes, at: int) -> None:
        line = blob.count(b"\n", 0, at) + 1
        super().__init__(f"byte {at} (line {line}) should be {what} but is {_found(blob, at)}")


def _found(blob: bytes, at: int) -> str:
    if at == len(blob):
        return "the end of the file"
    if blob.startswith(codecs.BOM_UTF8, at):
        return "a byte order mark, which some editors write"
    return repr(chr(blob[at])) if blob[at] < 0x80 else f"the byte {blob[at]:#x}"


class Mismatch(Exception):
    """Valid JSON, but not of the type wanted; knows the path of the value that does not fit."""

    def __init__(self, wanted: str, found: Json) -> None:
        self.path = ""
        self.wanted = wanted
        self.found = _describe(found)
        super().__init__()

    def within(self, step: str) -> "Mismatch":
        """Add a step to the front of the path, on the way out of the decoders."""
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


# Reading ---------------------------------------------------------------------------------------------

_WS = rb"[ \t\r\n]*"
_CHARS = rb'[^"\\\x00-\x1f]*+'
_STARTED = rb'"' + _CHARS + rb'(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})' + _CHARS + rb")*+"
_STRING = rb'"(' + _CHARS + rb')"|(' + _STARTED + rb'")'
_value = re.compile(
    _WS + rb"(?:" + _STRING + rb"|(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"
    rb"|(true|false|null)|([\[{]))"
).match
_PLAIN, _ESCAPED, _NUMBER, _WORD, _OPEN = range(1, 6)
_name = re.compile(_WS + rb"(?:" + _STRING + rb")" + _WS + rb":").match
_blank = re.compile(_WS).match
_started = re.compile(_STARTED).match
_punctuation = re.compile(_WS + rb"([,\]}])").match
_empty_array = re.compile(_WS + rb"\]").match
_empty_object = re.compile(_WS + rb"\}").match
_WORDS: dict[bytes, Json] = {b"true": True, b"false": False, b"null": None}


def _text(token: re.Match[bytes]) -> str:
    plain: bytes | None = token[_PLAIN]
    return unescape(token[_ESCAPED]) if plain is None else from_utf8(plain)


def read(blob: bytes) -> Json:
    """Read one JSON document; `Malformed` says where it stops being one."""

    def malformed(what: str, at: int) -> Malformed:
        blank = _blank(blob, at)
        at = blank.end() if blank else at
        string = _started(blob, at)
        if string and blob[string.end() : string.end() + 1] != b'"':
            return Malformed("a proper character or the end of a string", blob, string.end())
        return Malformed(what, blob, at)

    def name(at: int) -> int:
        token = _name(blob, at)
        if token is None:
            raise malformed("a quoted name and a colon", at)
        names.append(_text(token))
        return token.end()

    enclosing: list[Array | Object] = []
    names: list[str] = []  # the name that waits for its value, for every object in `enclosing`
    at = 0
    while True:
        token = _value(blob, at)
        if token is None:
            raise malformed("a JSON value", at)
        at = token.end()
        kind = token.lastindex
        value: Json
        if kind in (_PLAIN, _ESCAPED):
            value = _text(token)
        elif kind == _NUMBER:
            value = token[_NUMBER]
        elif kind == _WORD:
            value = _WORDS[token[_WORD]]
        else:
            if len(enclosing) == MAX_DEPTH:
                raise malformed(f"nested no deeper than {MAX_DEPTH} levels", token.start())
            value = Object() if token[_OPEN] == b"{" else Array()
            is_object = isinstance(value, Object)
            empty = (_empty_object if is_object else _empty_array)(blob, at)
            if empty is None:
                enclosing.append(value)
                at = name(at) if is_object else at
                continue
            at = empty.end()
        while enclosing:
            inside = enclosing[-1]
            mark = _punctuation(blob, at)
            if isinstance(inside, Object):
                inside.append((names.pop(), value))
                closing = b"}"
            else:
                inside.append(value)
                closing = b"]"
            if mark is None or mark[1] not in (b",", closing):
                raise malformed(f"a comma or {closing.decode()!r}", at)
            at = mark.end()
            if mark[1] == b",":
                if closing == b"}":
                    at = name(at)
                break
            value = enclosing.pop()
        else:
            blank = _blank(blob, at)
            if blank is None or blank.end() != len(blob):
                raise malformed("the end of the file", at)
            return value


# Decoding --------------------------------------------------------------------------------------------


class Slice(Generic[T]):
    """A Go slice: what was decoded into it before stays behind its end, and shows when it grows again."""

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
    """Digits and nothing else: 1.0 and 1e0 are refused, as is what does not fit into the bits."""
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
    """Null is a nil slice; a list decodes over the elements that are there, and drops the rest."""

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
    """Null is a nil map; an object adds to what is there, but never merges into a value."""

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

    Null changes nothing, an unknown name is passed over, a repeated one decodes over what is there.
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
    """Base64 with its padding, line breaks ignored; or, as Go also accepts, a list of small numbers."""
    if value is None or isinstance(value, Array):
        return _byte_list(value, old)
    if isinstance(value, str):
        decoded = from_base64(value)
        if decoded is not None:
            return Slice(bytearray(decoded), len(decoded))
    raise Mismatch("base64 with padding", value)
