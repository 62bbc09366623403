"""Output for a terminal: the terminal's properties, tables, wrapped text and a progress bar."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from types import TracebackType
from typing import Self, TextIO

from flowfabric.core.validation import escape

_COLOURS = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36", "grey": "90", "bold": "1"}
_STATE_COLOURS = {
    "completed": "green", "ok": "green", "active": "cyan", "running": "cyan", "failed": "red", "expired": "red",
    "wrong": "red", "cancelled": "yellow", "warning": "yellow", "suspended": "blue", "blocked": "yellow",
    "paused": "yellow", "draining": "yellow", "skipped": "grey",
}  # fmt: skip
_MIN_WIDTH = 20
_COLUMN_GAP = 2
_FOLD_INDENT = 4
_BAR_CELLS = 24


@dataclass(frozen=True, slots=True)
class Screen:
    """The properties of an output stream. `width` has the value None for a file or a pipe, which receives full text."""

    width: int | None = None
    has_colours: bool = False
    has_unicode: bool = True

    @property
    def ellipsis(self) -> str:
        return "…" if self.has_unicode else "..."

    def paint(self, text: str, colour: str | None) -> str:
        """Return the text in a colour, if the stream has colours."""
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self.has_colours and colour else text

    def paint_word(self, text: str) -> str:
        """Return a state or verdict in its colour. Padding around the word is kept."""
        return self.paint(text, _STATE_COLOURS.get(text.strip()))

    def cut(self, text: str, width: int) -> str:
        """Shorten a text to a width; a shortened text ends in an ellipsis."""
        if display_width(text) <= width:
            return text
        remaining = width - len(self.ellipsis)
        kept = ""
        for letter in text:
            remaining -= display_width(letter)
            if remaining < 0:
                break
            kept += letter
        return (kept + self.ellipsis)[: max(width, 1)]


def detect_screen(stream: TextIO | None = None, environment: Mapping[str, str] = os.environ) -> Screen:
    """Return the properties of a stream, by default of standard output."""
    out = sys.stdout if stream is None else stream
    on_terminal = out.isatty()
    has_colours = on_terminal and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
    return Screen(_detect_width(out, on_terminal, environment), has_colours, _can_encode_unicode(out))


def escape_lines(text: str) -> list[str]:
    """Return the lines of a text, each of them escaped."""
    return [escape(line) for line in text.strip().split("\n")]


def display_width(text: str) -> int:
    """Return the number of columns that a text takes."""
    if text.isascii():
        return len(text)
    return sum(_letter_width(letter) for letter in text)


def _letter_width(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def _detect_width(out: TextIO, on_terminal: bool, environment: Mapping[str, str]) -> int | None:
    if not on_terminal:
        return None
    columns = environment.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit() and int(columns) > 0:
        return max(int(columns), _MIN_WIDTH)
    try:
        return max(os.get_terminal_size(out.fileno()).columns or 80, _MIN_WIDTH)
    except (OSError, ValueError):
        return 80


def _can_encode_unicode(out: TextIO) -> bool:
    try:
        "…─│└├●".encode(out.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    It can shrink to `min_width`; without a minimum it never shrinks, as for ids. An optional column can be dropped.
    """

    title: str
    min_width: int | None = None
    align_right: bool = False
    is_optional: bool = False


def format_table(columns: Sequence[Column], rows: Sequence[Sequence[object]], screen: Screen) -> list[str]:
    """Return the lines of a table with a title line, at most as wide as the screen.

    If the table is too wide, columns shrink first; then optional columns are dropped, the rightmost first. Shortened
    cells end in an ellipsis.
    """
    texts = [["" if value is None else escape(str(value)) for value in row] for row in rows]
    while True:
        widths = _full_widths(columns, texts)
        if screen.width is None or _fits(widths, screen.width):
            break
        widths = _shrink(columns, widths, screen.width)
        dropped = _last_optional(columns)
        if _fits(widths, screen.width) or dropped is None:
            widths = _squeeze(widths, screen.width)
            break
        columns = [*columns[:dropped], *columns[dropped + 1 :]]
        texts = [[*row[:dropped], *row[dropped + 1 :]] for row in texts]
    titles = _format_row(columns, [column.title for column in columns], widths, screen, painted=False)
    return [screen.paint(titles, "bold"), *(_format_row(columns, row, widths, screen, painted=True) for row in texts)]


def format_facts(pairs: Sequence[tuple[str, object]], screen: Screen) -> list[str]:
    """Return one line for each pair of a name and a value.

    None and empty values are left out; long values are wrapped.
    """
    texts = [(name, str(value)) for name, value in pairs if value is not None and value != ""]
    indent = max((len(name) for name, _ in texts), default=0) + _COLUMN_GAP
    lines: list[str] = []
    for name, value in texts:
        first, *rest = wrap_text(value, screen, indent)
        lines += [f"{screen.paint(name.ljust(indent), 'grey')}{first}", *(" " * indent + line for line in rest)]
    return lines


def wrap_text(text: str, screen: Screen, indent: int = 0) -> list[str]:
    """Escape the text and wrap it into lines that leave room for the indent. Words that are too long are shortened."""
    safe = escape(text)
    if screen.width is None:
        return [safe]
    width = max(screen.width - indent, 10)
    lines = wrap(safe, width, break_on_hyphens=False) or [""]
    return [screen.cut(line, width) for line in lines]


def fold_parts(parts: Sequence[str], screen: Screen) -> list[str]:
    """Put the parts side by side on one line. Parts that do not fit follow on indented lines."""
    lines: list[str] = []
    for part in map(escape, parts):
        extended = f"{lines[-1]}{' ' * _COLUMN_GAP}{part}" if lines else part
        if screen.width is None or display_width(extended) <= screen.width:
            lines[-1:] = [extended]
        else:
            lines += [" " * _FOLD_INDENT + line for line in wrap_text(part, screen, _FOLD_INDENT)]
    return lines


def _full_widths(columns: Sequence[Column], texts: Sequence[Sequence[str]]) -> list[int]:
    return [
        max([display_width(column.title), *(display_width(row[index]) for row in texts)])
        for index, column in enumerate(columns)
    ]


def _fits(widths: Sequence[int], limit: int) -> bool:
    return sum(widths) + _COLUMN_GAP * (len(widths) - 1) <= limit


def _shrink(columns: Sequence[Column], widths: Sequence[int], limit: int) -> list[int]:
    """Shrink columns until the table fits, the widest first, but none below its minimum."""
    shrunk = list(widths)
    minimums = [
        width if column.min_width is None else column.min_width for column, width in zip(columns, widths, strict=True)
    ]
    while not _fits(shrunk, limit):
        candidates = [index for index, width in enumerate(shrunk) if width > minimums[index]]
        if not candidates:
            break
        shrunk[max(candidates, key=lambda index: shrunk[index])] -= 1
    return shrunk


def _squeeze(widths: Sequence[int], limit: int) -> list[int]:
    """Shrink all columns, even below their minimum, as the last resort on a narrow screen."""
    squeezed = list(widths)
    while not _fits(squeezed, limit) and max(squeezed) > 1:
        squeezed[squeezed.index(max(squeezed))] -= 1
    return squeezed


def _last_optional(columns: Sequence[Column]) -> int | None:
    return next((index for index in reversed(range(len(columns))) if columns[index].is_optional), None)


def _format_row(
    columns: Sequence[Column], texts: Sequence[str], widths: Sequence[int], screen: Screen, *, painted: bool
) -> str:
    cells = []
    for column, text, width in zip(columns, texts, widths, strict=True):
        cut = screen.cut(text, width)
        padding = " " * (width - display_width(cut))
        cells.append((padding + cut if column.align_right else cut + padding, column))
    last, _ = cells.pop()
    line = "".join(_paint_cell(cell, screen, painted) + " " * _COLUMN_GAP for cell, _ in cells)
    return (line + _paint_cell(last.rstrip(), screen, painted)).rstrip()


def _paint_cell(cell: str, screen: Screen, painted: bool) -> str:
    return screen.paint_word(cell) if painted else cell


class ProgressBar:
    """A progress bar on standard error: `with ProgressBar("submit", 100) as bar: bar.update(50)`.

    If standard error is not a terminal, the bar is not shown.
    """

    def __init__(self, label: str, total: int) -> None:
        self._label, self._total = escape(label), max(total, 1)
        self._is_visible = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._screen = detect_screen(sys.stderr)
        self._last = ""

    def __enter__(self) -> Self:
        self.update(0)
        return self

    def update(self, done: int, note: str = "") -> None:
        """Show how much of the total is done, and a note."""
        share = min(max(done, 0), self._total) / self._total
        full = round(share * _BAR_CELLS)
        line = f"{self._label} [{'#' * full}{'.' * (_BAR_CELLS - full)}] {share:4.0%} {escape(note)}".rstrip()
        self._show(self._screen.cut(line, (self._screen.width or 80) - 1))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._show("")

    def _show(self, line: str) -> None:
        if self._is_visible and line != self._last:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
            self._last = line
