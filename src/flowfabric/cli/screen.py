"""What the output is shown on: how wide it is, and whether it takes colours and signs beyond ASCII."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

_COLOURS = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36", "grey": "90", "bold": "1"}
_OF_WORDS = {
    "completed": "green", "ok": "green", "active": "cyan", "running": "cyan", "failed": "red", "expired": "red",
    "wrong": "red", "cancelled": "yellow", "warning": "yellow", "suspended": "blue", "blocked": "yellow",
    "paused": "yellow", "draining": "yellow", "skipped": "grey",
}  # fmt: skip
_LEAST_WIDTH = 20


@dataclass(frozen=True, slots=True)
class Screen:
    """`width` is None where nothing has to be cut: in a file or a pipe."""

    width: int | None = None
    colours: bool = False
    signs: bool = True

    @property
    def ellipsis(self) -> str:
        return "…" if self.signs else "..."

    def paint(self, text: str, colour: str | None) -> str:
        """The text in a colour, or as it is."""
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self.colours and colour else text

    def paint_word(self, text: str) -> str:
        """A state or verdict in its colour; blanks around it stay."""
        return self.paint(text, _OF_WORDS.get(text.strip()))

    def cut(self, text: str, width: int) -> str:
        """As much of a text as has room, with an ellipsis if that is not all."""
        if width_of(text) <= width:
            return text
        room = width - len(self.ellipsis)
        kept = ""
        for letter in text:
            room -= width_of(letter)
            if room < 0:
                break
            kept += letter
        return (kept + self.ellipsis)[: max(width, 1)]


def screen(stream: TextIO | None = None, environment: Mapping[str, str] = os.environ) -> Screen:
    """What standard output is shown on."""
    out = sys.stdout if stream is None else stream
    on_terminal = out.isatty()
    colours = on_terminal and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
    return Screen(_width(out, on_terminal, environment), colours, _takes_signs(out))


def escaped(text: str) -> str:
    """Text of others as it may be printed: what could steer the terminal is written out."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )


def width_of(text: str) -> int:
    """How many columns a text takes."""
    if text.isascii():
        return len(text)
    return sum(_letter_width(letter) for letter in text)


def _letter_width(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def _width(out: TextIO, on_terminal: bool, environment: Mapping[str, str]) -> int | None:
    if not on_terminal:
        return None
    told = environment.get("COLUMNS", "")
    if told.isascii() and told.isdigit() and int(told) > 0:
        return max(int(told), _LEAST_WIDTH)
    try:
        return max(os.get_terminal_size(out.fileno()).columns or 80, _LEAST_WIDTH)
    except (OSError, ValueError):
        return 80


def _takes_signs(out: TextIO) -> bool:
    try:
        "…─│└├●".encode(out.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
