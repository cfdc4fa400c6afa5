"""Reads JSON as Go's encoding/json does, from bytes to a tree; `_go_values` decodes the tree into Go-like values.

The kubelet reads its files with that package, whose rules decide whether a file loads: a name may occur twice, a
number stays as written, bytes that are not UTF-8 become U+FFFD. Python's json module has other rules, so this is a
reader of our own. It uses one regular expression per token and one stack: its cost is linear, and it does not
recurse.

No I/O, and no knowledge of checkpoints.
"""

import codecs
import re
from typing import TypeAlias

from colocate.kubelet._gotext import from_utf8, unescape

MAX_DEPTH = 10_000  # Go's limit


class Array(list["Json"]):
    """A JSON array."""


class Object(list[tuple[str, "Json"]]):
    """A JSON object: its members in the order of the file, including repeated names."""


# A number stays the literal that was read: 1.0, 1e0 and 1 differ where an integer is expected.
Json: TypeAlias = "bool | str | bytes | Array | Object | None"


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
    names: list[str] = []  # the name of the value being read, for every object in `enclosing`
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
