"""What is shown on a screen of some width, with and without colours and signs."""

from __future__ import annotations

import io

import pytest

from flowfabric.cli.documents import document
from flowfabric.cli.screen import Screen, escaped, screen, width_of
from flowfabric.cli.tables import Column, facts, paragraph, table
from flowfabric.engine import FailureClass, State

COLUMNS = (Column("ID"), Column("NAME", 4), Column("N", right=True), Column("NOTE", 4, spare=True))
ROWS = [("12345678", "a long name", 7, "something to say"), ("87654321", "b", 1234, "")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table_is_as_wide_as_it_must_be() -> None:
    assert table(COLUMNS, ROWS, Screen()) == [
        "ID        NAME            N  NOTE",
        "12345678  a long name     7  something to say",
        "87654321  b            1234",
    ]


def test_what_is_cut_ends_in_an_ellipsis() -> None:
    assert table(COLUMNS, ROWS, Screen(36)) == [
        "ID        NAME          N  NOTE",
        "12345678  a long n…     7  somethin…",
        "87654321  b          1234",
    ]


def test_columns_that_can_be_spared_go_first_and_ids_last() -> None:
    assert table(COLUMNS, ROWS, Screen(23)) == [
        "ID        NAME        N",
        "12345678  a long…     7",
        "87654321  b        1234",
    ]
    assert table(COLUMNS, ROWS, Screen(20)) == ["ID        NAME     N", "12345678  a l…     7", "87654321  b     1234"]


@pytest.mark.parametrize("width", range(20, 60))
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    rows = [*ROWS, ("数" * 12, "e\u0301" * 30, 10**9, "x" * 50)]
    assert all(width_of(line) <= width for line in table(COLUMNS, rows, Screen(width)))
    assert all(width_of(line) <= width for line in table(COLUMNS, rows, Screen(width, signs=False)))
    assert all(width_of(line) <= width for line in facts([("name", "word " * 40), ("id", "x" * 99)], Screen(width)))


def test_letters_take_the_room_that_they_need() -> None:
    assert [width_of(text) for text in ("abc", "数字", "e\u0301", "")] == [3, 4, 1, 0]
    assert Screen(9).cut("数字数字", 5) == "数字…" and Screen(9, signs=False).cut("abcdefgh", 5) == "ab..."


def test_other_peoples_text_cannot_steer_the_terminal() -> None:
    assert escaped("a\x1b[2J\nb\r\u202e\udc80é数") == r"a\x1b[2J\nb\r\u202e\udc80é数"
    [_, line] = table((Column("NAME", 4),), [("\x1b]0;title\x07",)], Screen(80, colours=True))
    assert line == r"\x1b]0;title\x07"
    assert paragraph("one\ntwo", Screen(40)) == [r"one\ntwo"]
    assert document({"x": "\x1b"}) == r'{"x": "\u001b"}'


def test_colours_are_for_terminals_that_want_them() -> None:
    assert screen(Terminal(), {}).colours and screen(Terminal(), {"NO_COLOR": ""}).colours
    for stream, variables in ((Terminal(), {"NO_COLOR": "1"}), (Terminal(), {"TERM": "dumb"}), (io.StringIO(), {})):
        assert not screen(stream, variables).colours
    painted = table((Column("STATE"),), [("failed",), ("other",)], Screen(colours=True))
    assert painted[1:] == ["\x1b[31mfailed\x1b[0m", "other"]
    assert table((Column("STATE"),), [("failed",)], Screen()) == ["STATE", "failed"]


def test_the_width_is_that_of_the_terminal_and_none_in_a_pipe() -> None:
    assert screen(io.StringIO(), {}).width is None
    assert screen(io.StringIO(), {"COLUMNS": "100"}).width is None, "shells may export it to whatever reads a pipe"
    assert screen(Terminal(), {"COLUMNS": "100"}).width == 100
    assert screen(Terminal(), {}).width == 80
    for odd in ("0", "-5", "many", "²"):
        assert screen(Terminal(), {"COLUMNS": odd}).width == 80


def test_signs_are_for_encodings_that_have_them() -> None:
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert (screen(plain, {}).signs, screen(plain, {}).ellipsis) == (False, "...")


def test_documents_say_what_json_can_say() -> None:
    held = {State.ACTIVE: FailureClass.TRANSIENT, "raw": b"\xff", "json": b'{"a":1}', "none": b"", "nan": float("nan")}
    said = '{"active": "transient", "raw": {"base64": "/w=="}, "json": {"a": 1}, "none": null, "nan": "nan"}'
    assert document(held) == said
    assert document(b"NaN") == '{"base64": "TmFO"}' and document(b"[" * 50_000).startswith('{"base64"')
