"""How commands print: aligned columns for people, JSON and YAML for programs, all from the same data."""

import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import yaml


def as_json(value: Any) -> str:
    """Structs, or anything that msgspec can write, as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def as_yaml(value: Any) -> str:
    """The same tree as YAML, without a final newline."""
    return yaml.safe_dump(msgspec.to_builtins(value), sort_keys=False, allow_unicode=True, width=110).rstrip()


def aligned(rows: Sequence[Sequence[str]], gap: int = 3) -> Iterator[str]:
    """Lines in which every column but the last is as wide as its widest cell.

    A control character in a cell (an id may hold any) is shown by its number: it must not move the cursor.
    """
    shown = [[visible(cell) for cell in row] for row in rows]
    columns = max(map(len, shown), default=0)
    widths = [max((_width(row[n]) for row in shown if n < len(row)), default=0) for n in range(columns)]
    for row in shown:
        cells = [cell + " " * (widths[n] - _width(cell) + gap) for n, cell in enumerate(row[:-1])]
        yield "".join((*cells, *row[-1:])).rstrip()


def visible(text: str) -> str:
    """The text with control characters, and all else that has no shape, written as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
