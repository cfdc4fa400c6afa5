"""Columns that line up whatever is in them, and the same tree as JSON and YAML."""

import json
import os

import msgspec
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from colocate.cli.output import aligned, as_json, as_yaml, fitted, last_below, visible, wrapped


class Fan(msgspec.Struct):
    name: str
    blades: tuple[int, ...] = ()


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert list(aligned([["NAME", "N"], ["a long name", "1"], ["短", "22"]])) == [
        "NAME          N",
        "a long name   1",
        "短            22",
    ]


def test_the_last_column_is_not_padded_and_rows_may_be_short() -> None:
    assert list(aligned([["a", "b", "c"], ["aa"], []])) == ["a    b   c", "aa", ""]


@given(st.lists(st.lists(st.text(), max_size=4), max_size=4))
def test_no_cell_can_move_the_cursor_or_break_a_line(rows: list[list[str]]) -> None:
    lines = list(aligned(rows))
    assert len(lines) == len(rows)
    assert all(line.isprintable() for line in lines)


@given(st.text(), st.integers(40, 100))
def test_a_wrapped_sentence_has_all_its_words_and_fits(text: str, width: int) -> None:
    lines = wrapped(visible(text), width, "  ", "    ")
    assert " ".join(lines).split() == visible(text).split()
    assert all(len(line) <= width or len(line.split()) == 1 for line in lines)
    assert wrapped(text, 0, "  ") == [f"  {text}"]


def test_what_has_no_shape_is_written_as_an_escape() -> None:
    assert visible("\x1b[31mred\nline") == "\\x1b[31mred\\nline"


def test_structs_become_json_and_yaml() -> None:
    fans = [Fan("größe", (3,))]
    assert json.loads(as_json(fans)) == yaml.safe_load(as_yaml(fans)) == [{"name": "größe", "blades": [3]}]


@given(st.dictionaries(st.text(), st.text(), max_size=4))
@example({"\x9b31m\u202eevil": "\x1b[2J\x7f\u2066\ufeff\U000e0001"})
def test_no_text_of_a_server_steers_a_terminal_in_json_or_yaml(texts: dict[str, str]) -> None:
    for written in (as_json(texts), as_yaml(texts)):
        assert all(map(str.isprintable, written.split("\n")))
    assert json.loads(as_json(texts)) == texts
    assert yaml.safe_load(as_yaml(texts)) == texts


@given(st.dictionaries(st.text(), st.text()))
@example({"\x85": "a\x85b", "\u2028": " \ufeff", "\n": "\n"})
def test_yaml_loses_nothing(texts: dict[str, str]) -> None:
    assert yaml.safe_load(as_yaml(texts)) == texts


def test_the_name_of_a_file_that_is_no_text_is_written_as_an_escape() -> None:
    name = os.fsdecode(b"caf\xe9")
    for written in (as_json(Fan(name)), as_yaml(Fan(name))):
        assert yaml.safe_load(written)["name"] == r"caf\udce9"
    assert msgspec.json.decode(as_json(Fan(name))) == json.loads(as_json(Fan(name)))


ROWS = [
    ["POD", "BLOCKS", "USED", "DONE"],
    ["batch/sorter", "3", "1.5 GiB", ""],
    ["batch/packer", "12", "7 MiB", "off"],
]


@pytest.mark.parametrize("width", [0, 80])
def test_a_table_that_fits_is_a_table(width: int) -> None:
    assert list(fitted(ROWS, width)) == list(aligned(ROWS))


def test_a_table_that_does_not_fit_is_a_record_for_each_row() -> None:
    rows = [[*row, "x" * 30] for row in ROWS]
    rows[0][-1] = "WHY"
    lines = list(fitted(rows, 40))
    assert lines[:2] == ["batch/sorter", "  blocks 3, used 1.5 GiB, why"]
    assert max(map(len, lines)) <= 40
    told = " ".join(lines)
    assert "done" not in told.partition("batch/packer")[0], "an empty cell has no name"
    assert "done off" in told


def test_the_last_column_goes_below_where_there_is_no_room_beside_the_others() -> None:
    rows = [["# system", "1.5 GiB", "used outside pods by whatever runs there"]]
    assert list(last_below(rows, 80)) == list(aligned(rows))
    assert next(last_below(rows, 45)) == "# system   1.5 GiB   used outside pods by"
    assert list(last_below([["a" * 30, *rows[0]]], 40))[1].startswith("  used outside")
