"""A strict reader of YAML: one document of mappings, lists, text, numbers and booleans.

A key may not appear twice; `yes`, `on` and `0010` are text (as in YAML 1.2); tags are refused; depth and repeated
aliases are limited, so that a small file cannot expand. Reads text; opens no file and knows no field.
"""

import re
from collections.abc import Iterator
from typing import Any, TypeAlias

import yaml

Tree: TypeAlias = "bool | int | float | str | list[Tree] | dict[str, Tree] | None"

_MAX_DEPTH = 40
_MAX_NODES = 300_000
_MAX_DIGITS = 30

_WORDS: dict[str, Tree] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")

# libyaml is fast with a hundred thousand ids; the pure Python reader gives the same result slowly.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class NotYaml(Exception):
    """The text is not usable YAML: where, what was found and what to do about it."""

    def __init__(self, mark: Any, what: str) -> None:
        at = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        super().__init__(f"{at}{what}")


def parse(text: str) -> Tree:
    """Read one YAML document; None if there are only blanks and comments."""
    try:
        return _Reader(yaml.parse(text, Loader=_Loader)).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        if error.context_mark is not None and (mark is None or mark.line >= len(text.splitlines())):
            mark = error.context_mark  # Where the unclosed element began, not the end of the file.
        raise NotYaml(mark, _syntax_error(text, error.problem or "", mark)) from error
    except yaml.YAMLError as error:
        raise NotYaml(None, "it has characters that YAML does not allow; remove them") from error


class _Reader:
    """Builds values from the parser's events."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._anchors: dict[str, tuple[Tree, int]] = {}
        self._nodes = 0

    def document(self) -> Tree:
        found: Tree = None
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise NotYaml(event.start_mark, "a second document begins here; keep one per file")
                found = self._value(next(self._events), 0)
        return found

    def _value(self, event: Any, depth: int) -> Tree:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        before = self._nodes
        self._count(event, 1)
        if depth > _MAX_DEPTH:
            raise NotYaml(
                event.start_mark, f"nested more than {_MAX_DEPTH} levels deep; no field is that deep"
            )
        if event.tag is not None:
            raise NotYaml(event.start_mark, "a tag (!) is not used here; put text in quotes instead")
        value: Tree
        if isinstance(event, yaml.ScalarEvent):
            value = _scalar(event.value) if event.implicit[0] else event.value
        elif isinstance(event, yaml.SequenceStartEvent):
            value = [self._value(item, depth + 1) for item in self._until(yaml.SequenceEndEvent)]
        else:
            value = self._mapping(depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, self._nodes - before)
        return value

    def _mapping(self, depth: int) -> dict[str, Tree]:
        found: dict[str, Tree] = {}
        for key in self._until(yaml.MappingEndEvent):
            if not isinstance(key, yaml.ScalarEvent):
                raise NotYaml(key.start_mark, "a field's name must be plain text")
            name: str = key.value
            if name in found:
                raise NotYaml(key.start_mark, "this field is given twice; remove one of them")
            found[name] = self._value(next(self._events), depth + 1)
        return found

    def _alias(self, event: Any) -> Tree:
        if event.anchor not in self._anchors:
            raise NotYaml(
                event.start_mark, f"*{event.anchor} refers to an anchor that does not exist; define it before"
            )
        value, nodes = self._anchors[event.anchor]
        self._count(event, nodes)
        return value

    def _count(self, event: Any, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > _MAX_NODES:
            raise NotYaml(
                event.start_mark, f"more than {_MAX_NODES} values up to here; make the file smaller"
            )

    def _until(self, end: type) -> Iterator[Any]:
        for event in self._events:
            if isinstance(event, end):
                return
            yield event


def _scalar(text: str) -> Tree:
    if text in _WORDS:
        return _WORDS[text]
    if len(text) <= _MAX_DIGITS:
        if _INT.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            return float(text)
    return text


def _syntax_error(text: str, problem: str, mark: Any) -> str:
    lines = text.splitlines()
    line = lines[mark.line] if mark is not None and mark.line < len(lines) else ""
    if line[: len(line) - len(line.lstrip())].count("\t"):
        return "this line is indented with a tab; use spaces"
    return f"this is not valid YAML ({problem or 'it ends too early'}); correct it there or just above"
