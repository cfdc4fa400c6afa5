"""Text as Go programs read and write it: UTF-8, JSON strings, numbers, base64, printed lists, FNV-1a.

No I/O, and no knowledge of checkpoints.
"""

import binascii
import codecs
import json
import re
from collections.abc import Iterable
from typing import TypeVar

K = TypeVar("K", int, str)


def _byte_for_byte(error: UnicodeError) -> tuple[str, int]:
    """One U+FFFD for every byte that is not UTF-8; Python's own "replace" would join some of them."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error("colocate-go", _byte_for_byte)


def from_utf8(text: bytes) -> str:
    return text.decode("utf-8", "colocate-go")


_SURROGATE = re.compile("[\ud800-\udfff]")


def unescape(literal: bytes) -> str:
    """The text of a quoted JSON string that is known to be well-formed; lone surrogates become U+FFFD."""
    text: str = json.loads(from_utf8(literal))
    return _SURROGATE.sub("\ufffd", text)


def fold(name: str) -> str:
    """Fold the case of a field's name as Go does, which counts K (Kelvin) and ſ as letters k and s."""
    return name.lower().replace("ſ", "s")


def parse_int64(text: str) -> int | None:
    """Parse an optional sign and decimal digits, leading zeros allowed; None for anything else."""
    parts = re.fullmatch("([+-]?)0*([0-9]+)", text)
    if parts is None or len(parts[2]) > 19:
        return None
    number = int(parts[1] + parts[2])
    return number if -(2**63) <= number < 2**63 else None


_BASE64 = re.compile("[A-Za-z0-9+/]*={0,2}")


def from_base64(text: str) -> bytes | None:
    """Decode base64. Line breaks are ignored, padding is required; None for anything else."""
    text = text.replace("\r", "").replace("\n", "")
    if len(text) % 4 or not _BASE64.fullmatch(text):
        return None
    return binascii.a2b_base64(text)


_ESCAPES = {chr(code): f"\\u{code:04x}" for code in (*range(0x20), *b"<>&", 0x2028, 0x2029)} | {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
}
_ESCAPED = re.compile('[\x00-\x1f"\\\\<>&\u2028\u2029]')


def quote(text: str) -> str:
    """A JSON string as Go 1.22 and later write it: escaped for HTML and JavaScript, otherwise unchanged."""
    return f'"{_ESCAPED.sub(lambda found: _ESCAPES[found[0]], text)}"'


def json_list(items: Iterable[str] | None) -> str:
    return "null" if items is None else f"[{','.join(map(quote, items))}]"


def json_map(lists: dict[K, tuple[str, ...] | None] | None) -> str:
    """Sorted by name; integers too are sorted as strings here: -1, 0, 10, 2."""
    if lists is None:
        return "null"
    named = {str(key): items for key, items in lists.items()}
    return f"{{{','.join(f'{quote(name)}:{json_list(named[name])}' for name in sorted(named))}}}"


def printed_list(items: Iterable[str] | None) -> str:
    return "<nil>" if items is None else f"[{' '.join(items)}]"


def printed_map(lists: dict[K, tuple[str, ...] | None] | None) -> str:
    """Sorted by key, integers as integers: -1, 0, 2, 10."""
    if lists is None:
        return "<nil>"
    return f"map[{' '.join(f'{key}:{printed_list(lists[key])}' for key in sorted(lists))}]"


def fnv1a(data: bytes) -> int:
    """The 32-bit FNV-1a hash."""
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value
