"""Tables and text fit the width of the screen, with and without colours and symbols."""

from __future__ import annotations

import io

import pytest

from flowfabric.cli.output import format_json
from flowfabric.cli.terminal import (
    Column,
    Screen,
    detect_screen,
    display_width,
    format_facts,
    format_table,
    wrap_text,
)
from flowfabric.core.validation import escape
from flowfabric.engine import FailureClass, State

COLUMNS = (Column("ID"), Column("NAME", 4), Column("N", align_right=True), Column("NOTE", 4, is_optional=True))
ROWS = [("12345678", "a long name", 7, "something to say"), ("87654321", "b", 1234, "")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_table_is_as_wide_as_its_contents() -> None:
    assert format_table(COLUMNS, ROWS, Screen()) == [
        "ID        NAME            N  NOTE",
        "12345678  a long name     7  something to say",
        "87654321  b            1234",
    ]


def test_truncated_cells_end_in_an_ellipsis() -> None:
    assert format_table(COLUMNS, ROWS, Screen(36)) == [
        "ID        NAME          N  NOTE",
        "12345678  a long n…     7  somethin…",
        "87654321  b          1234",
    ]


def test_spare_columns_are_dropped_before_other_columns_shrink() -> None:
    assert format_table(COLUMNS, ROWS, Screen(23)) == [
        "ID        NAME        N",
        "12345678  a long…     7",
        "87654321  b        1234",
    ]
    assert format_table(COLUMNS, ROWS, Screen(20)) == [
        "ID        NAME     N",
        "12345678  a l…     7",
        "87654321  b     1234",
    ]


@pytest.mark.parametrize("width", range(20, 60))
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    rows = [*ROWS, ("数" * 12, "e\u0301" * 30, 10**9, "x" * 50)]
    assert all(display_width(line) <= width for line in format_table(COLUMNS, rows, Screen(width)))
    assert all(display_width(line) <= width for line in format_table(COLUMNS, rows, Screen(width, has_unicode=False)))
    assert all(
        display_width(line) <= width for line in format_facts([("name", "word " * 40), ("id", "x" * 99)], Screen(width))
    )


def test_wide_and_combining_characters_are_measured() -> None:
    assert [display_width(text) for text in ("abc", "数字", "e\u0301", "")] == [3, 4, 1, 0]
    assert Screen(9).cut("数字数字", 5) == "数字…" and Screen(9, has_unicode=False).cut("abcdefgh", 5) == "ab..."


def test_control_characters_are_escaped() -> None:
    assert escape("a\x1b[2J\nb\r\u202e\udc80é数") == r"a\x1b[2J\nb\r\u202e\udc80é数"
    [_, line] = format_table((Column("NAME", 4),), [("\x1b]0;title\x07",)], Screen(80, has_colours=True))
    assert line == r"\x1b]0;title\x07"
    assert wrap_text("one\ntwo", Screen(40)) == [r"one\ntwo"]
    assert format_json({"x": "\x1b"}) == r'{"x": "\u001b"}'


def test_colours_are_used_only_on_terminals_that_allow_them() -> None:
    assert detect_screen(Terminal(), {}).has_colours and detect_screen(Terminal(), {"NO_COLOR": ""}).has_colours
    for stream, variables in ((Terminal(), {"NO_COLOR": "1"}), (Terminal(), {"TERM": "dumb"}), (io.StringIO(), {})):
        assert not detect_screen(stream, variables).has_colours
    painted = format_table((Column("STATE"),), [("failed",), ("other",)], Screen(has_colours=True))
    assert painted[1:] == ["\x1b[31mfailed\x1b[0m", "other"]
    assert format_table((Column("STATE"),), [("failed",)], Screen()) == ["STATE", "failed"]


def test_width_is_that_of_the_terminal_and_unlimited_in_a_pipe() -> None:
    assert detect_screen(io.StringIO(), {}).width is None
    assert detect_screen(io.StringIO(), {"COLUMNS": "100"}).width is None, (
        "COLUMNS is ignored in a pipe since shells may export it"
    )
    assert detect_screen(Terminal(), {"COLUMNS": "100"}).width == 100
    assert detect_screen(Terminal(), {}).width == 80
    for invalid_columns in ("0", "-5", "many", "²"):
        assert detect_screen(Terminal(), {"COLUMNS": invalid_columns}).width == 80


def test_ascii_encoding_gets_no_symbols() -> None:
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert (detect_screen(plain, {}).has_unicode, detect_screen(plain, {}).ellipsis) == (False, "...")


def test_json_documents_encode_bytes_and_special_numbers() -> None:
    content = {
        State.ACTIVE: FailureClass.TRANSIENT,
        "raw": b"\xff",
        "json": b'{"a":1}',
        "none": b"",
        "nan": float("nan"),
    }
    expected = '{"active": "transient", "raw": {"base64": "/w=="}, "json": {"a": 1}, "none": null, "nan": "nan"}'
    assert format_json(content) == expected
    assert format_json(b"NaN") == '{"base64": "TmFO"}' and format_json(b"[" * 50_000).startswith('{"base64"')
