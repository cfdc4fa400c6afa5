"""Prints aligned columns for people, and JSON and YAML for programs, from the same data."""

import json
import os
import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import yaml

from colocate.errors import visible as visible

_NO_TEXT = re.compile("[\ud800-\udfff]")
"""Surrogates, by which Python represents bytes of file names that are not text; JSON and YAML cannot have them."""
_LEAST = 16
"""Least columns for a last column that is wrapped."""
_NARROWEST = 36
"""Least columns for sentences."""


def as_json(value: Any) -> str:
    """Structs, or anything that msgspec can write, as indented JSON."""
    try:
        written = msgspec.json.encode(value)
    except UnicodeEncodeError:
        text = json.dumps(msgspec.to_builtins(value, str_keys=True), ensure_ascii=False)
        written = _NO_TEXT.sub(lambda found: rf"\\u{ord(found[0]):x}", text).encode()
    return harmless(msgspec.json.format(written, indent=2).decode())


def harmless(text: str) -> str:
    """JSON, or YAML with such texts in double quotes, with control characters as escapes; the data is the same."""
    lines = text.split("\n")
    if all(map(str.isprintable, lines)) and _can_be_shown(text):
        return text
    # Written in full: only text that is not data gets look-alikes on an ASCII terminal.
    shown = str.isprintable if _can_be_shown("é…") else lambda c: c.isascii() and c.isprintable()
    return "\n".join("".join(c if shown(c) else json.dumps(c)[1:-1] for c in line) for line in lines)


def _can_be_shown(text: str) -> bool:
    """Whether standard output can encode all of these characters."""
    try:
        text.encode(sys.stdout.encoding or "utf-8", errors="strict")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


class _Dumper(yaml.SafeDumper):
    """Writes text with unusual characters in double quotes: PyYAML loses some of them otherwise."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        text = text.encode(errors="backslashreplace").decode()
        style = None if text.isascii() and text.isprintable() else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _Dumper.represent_text)


def as_yaml(value: Any) -> str:
    """The tree as YAML, without a final newline."""
    tree = msgspec.to_builtins(value)
    text = yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110).rstrip("\n")
    return harmless(text)


def aligned(rows: Sequence[Sequence[str]], gap: int = 3) -> Iterator[str]:
    """Lines in which every column but the last is as wide as its widest cell.

    A control character in a cell (an id may hold any) is shown as an escape: it must not move the cursor.
    """
    shown = [[visible(cell) for cell in row] for row in rows]
    columns = max(map(len, shown), default=0)
    widths = [max((_width(row[n]) for row in shown if n < len(row)), default=0) for n in range(columns)]
    for row in shown:
        cells = [cell + " " * (widths[n] - _width(cell) + gap) for n, cell in enumerate(row[:-1])]
        yield "".join((*cells, *row[-1:])).rstrip()


def fitted(rows: Sequence[Sequence[str]], width: int, gap: int = 3) -> Iterator[str]:
    """Aligned lines below their heads, which are the first row; records if the terminal is too narrow.

    A record begins with the row's first cell, and names the others by their heads.
    """
    lines = list(aligned(rows, gap))
    if not width or max(map(_width, lines), default=0) <= width:
        yield from lines
        return
    head, *others = rows
    for row in others:
        first, *cells = map(visible, row)
        yield first
        named = [f"{name.lower()} {cell}" for name, cell in zip(head[1:], cells, strict=False) if cell]
        # Keep a figure and its name on one line if they fit.
        told = ", ".join(part.replace(" ", "\u00a0") if len(part) < width // 2 else part for part in named)
        yield from (line.replace("\u00a0", " ") for line in wrapped(told, width, "  ", "  "))


def last_below(rows: Sequence[Sequence[str]], width: int, gap: int = 3) -> Iterator[str]:
    """Aligned lines whose last column is wrapped if the terminal is too narrow."""
    for line, row in zip(aligned(rows, gap=gap), rows, strict=True):
        last = visible(row[-1])
        before = line.removesuffix(last)
        if not width or len(line) <= width:
            yield line
        elif len(before) + _LEAST <= width:
            yield from wrapped(last, width, before, " " * len(before))
        else:
            yield before.rstrip()
            yield from wrapped(last, width, "  ", "  ")


def terminal_width() -> int:
    """Columns of the terminal, or COLUMNS; 0 if lines may have any length."""
    return shutil.get_terminal_size((0, 0)).columns


def has_colours() -> bool:
    """Whether the output may be coloured; NO_COLOR forbids it."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def painted(line: str, part: str, colour: str) -> str:
    """A line with the first occurrence of a part in a colour."""
    return line.replace(part, f"\x1b[{colour}m{part}\x1b[0m", 1) if part else line


def wrapped(text: str, width: int, indent: str = "", hanging: str = "") -> list[str]:
    """A sentence as lines within the width, if its words fit; one line if the width is 0.

    `indent` is before the first line, `hanging` before the others.
    """
    if not width:
        return [f"{indent}{text}"]
    lines = textwrap.wrap(
        text,
        max(width, _NARROWEST),
        initial_indent=indent,
        subsequent_indent=hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [indent]


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
