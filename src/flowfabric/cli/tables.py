"""Tables for people: as wide as they must be, and never wider than the screen.

Columns shrink to their least width, those that can be spared go from the right, and what was cut ends in an ellipsis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from flowfabric.cli.screen import Screen, escaped, width_of

_GAP = 2
_FOLD = 4


@dataclass(frozen=True, slots=True)
class Column:
    """A title, the least width that it may shrink to (None: never cut, such as ids), and whether it can be spared."""

    title: str
    least: int | None = None
    right: bool = False
    spare: bool = False


def table(columns: Sequence[Column], rows: Sequence[Sequence[object]], screen: Screen) -> list[str]:
    """The lines of a table, with a line of titles."""
    texts = [["" if value is None else escaped(str(value)) for value in row] for row in rows]
    while True:
        widths = _natural(columns, texts)
        if screen.width is None or _fits(widths, screen.width):
            break
        widths = _shrunk(columns, widths, screen.width)
        spared = _last_spare(columns)
        if _fits(widths, screen.width) or spared is None:
            widths = _squeezed(widths, screen.width)
            break
        columns = [*columns[:spared], *columns[spared + 1 :]]
        texts = [[*row[:spared], *row[spared + 1 :]] for row in texts]
    titles = screen.paint(_line(columns, [column.title for column in columns], widths, screen, painted=False), "bold")
    return [titles, *(_line(columns, row, widths, screen, painted=True) for row in texts)]


def facts(pairs: Sequence[tuple[str, object]], screen: Screen) -> list[str]:
    """Names and values, one below the other; what is None or empty is left out, what is long goes on below."""
    shown = [(name, str(value)) for name, value in pairs if value is not None and value != ""]
    indent = max((len(name) for name, _ in shown), default=0) + _GAP
    lines: list[str] = []
    for name, value in shown:
        first, *rest = paragraph(value, screen, indent)
        lines += [f"{screen.paint(name.ljust(indent), 'grey')}{first}", *(" " * indent + line for line in rest)]
    return lines


def paragraph(text: str, screen: Screen, indent: int = 0) -> list[str]:
    """A text in lines that have room beside an indent; a word that has none goes on below."""
    safe = escaped(text)
    if screen.width is None:
        return [safe]
    room = max(screen.width - indent, 10)
    lines = wrap(safe, room, break_on_hyphens=False) or [""]
    return [screen.cut(line, room) for line in lines]


def folded(parts: Sequence[str], screen: Screen) -> list[str]:
    """Parts side by side; those that have no room go on below, indented, each as whole as it can be."""
    lines: list[str] = []
    for part in map(escaped, parts):
        beside = f"{lines[-1]}{' ' * _GAP}{part}" if lines else part
        if screen.width is None or width_of(beside) <= screen.width:
            lines[-1:] = [beside]
        else:
            lines += [" " * _FOLD + line for line in paragraph(part, screen, _FOLD)]
    return lines


def _natural(columns: Sequence[Column], texts: Sequence[Sequence[str]]) -> list[int]:
    return [
        max([width_of(column.title), *(width_of(row[place]) for row in texts)]) for place, column in enumerate(columns)
    ]


def _fits(widths: Sequence[int], room: int) -> bool:
    return sum(widths) + _GAP * (len(widths) - 1) <= room


def _shrunk(columns: Sequence[Column], widths: Sequence[int], room: int) -> list[int]:
    """The widest of those that may shrink give way first."""
    found = list(widths)
    least = [width if item.least is None else item.least for item, width in zip(columns, widths, strict=True)]
    while not _fits(found, room):
        over = [place for place, width in enumerate(found) if width > least[place]]
        if not over:
            break
        found[max(over, key=lambda place: found[place])] -= 1
    return found


def _squeezed(widths: Sequence[int], room: int) -> list[int]:
    """The last resort on a narrow screen: even what is never cut gives way."""
    found = list(widths)
    while not _fits(found, room) and max(found) > 1:
        found[found.index(max(found))] -= 1
    return found


def _last_spare(columns: Sequence[Column]) -> int | None:
    return next((place for place in reversed(range(len(columns))) if columns[place].spare), None)


def _line(
    columns: Sequence[Column], texts: Sequence[str], widths: Sequence[int], screen: Screen, *, painted: bool
) -> str:
    cells = []
    for column, text, width in zip(columns, texts, widths, strict=True):
        cut = screen.cut(text, width)
        blanks = " " * (width - width_of(cut))
        cells.append((blanks + cut if column.right else cut + blanks, column))
    last, _ = cells.pop()
    line = "".join(_painted(cell, screen, painted) + " " * _GAP for cell, _ in cells)
    return (line + _painted(last.rstrip(), screen, painted)).rstrip()


def _painted(cell: str, screen: Screen, painted: bool) -> str:
    return screen.paint_word(cell) if painted else cell
