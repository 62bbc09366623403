"""SVG charts: one bar for each contender, with a line from its lowest to its highest round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from benchmarks.spread import Spread
from benchmarks.table import number

_LABELS, _WIDTH, _NUMBERS = 340, 420, 110
_ROW, _HEAD = 26, 48
_FONT = 'font-family="sans-serif" font-size="13"'
# A picture in a page has no access to the page's colours. It only knows whether the reader prefers a dark page.
_STYLE = (
    "<style>text{fill:#0f172a}.told{fill:#475569}.ours{fill:#2563eb}.theirs{fill:#94a3b8}line{stroke:#0f172a}"
    "@media(prefers-color-scheme:dark){text{fill:#e2e8f0}.told{fill:#94a3b8}.ours{fill:#3b82f6}.theirs{fill:#64748b}"
    "line{stroke:#e2e8f0}}</style>"
)
# Above this ratio the scale is logarithmic, because a linear scale would hide the small bars.
_LINEAR = 30


@dataclass(frozen=True, slots=True)
class Mark:
    """One bar of the chart."""

    label: str
    figure: Spread
    ours: bool


def svg(title: str, unit: str, marks: Sequence[Mark]) -> str:
    """Return the chart of one scenario."""
    scale = _Scale([value for mark in marks for value in mark.figure.values])
    better = ", less is better" if unit.startswith("ms") else ""
    told = f"{unit}{better}; medians, thin lines are the lowest and the highest round{scale.note}"
    width, height = _LABELS + _WIDTH + _NUMBERS, _HEAD + _ROW * len(marks) + 10
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {_FONT} {size}>',
        _STYLE,
        f'<text x="8" y="20" font-size="15" font-weight="bold">{escape(title)}</text>',
        f'<text x="8" y="38" class="told" font-size="11">{escape(told)}</text>',
        *(line for place, mark in enumerate(marks) for line in _row(place, mark, scale)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


class _Scale:
    """The lengths of bars: linear, or logarithmic if the values differ widely."""

    def __init__(self, values: Sequence[float]) -> None:
        positive = [value for value in values if value > 0]
        self._top = max(positive, default=1.0)
        self._floor = min(positive, default=1.0) / 2
        self._logarithmic = self._top / self._floor > 2 * _LINEAR

    @property
    def note(self) -> str:
        return ", logarithmic scale" if self._logarithmic else ""

    def length(self, value: float) -> float:
        if value <= 0:
            return 0.0
        if self._logarithmic:
            return _WIDTH * math.log(value / self._floor) / math.log(self._top / self._floor)
        return _WIDTH * value / self._top


def _row(place: int, mark: Mark, scale: _Scale) -> list[str]:
    top = _HEAD + place * _ROW
    middle = top + _ROW / 2
    low, end, high = (scale.length(value) for value in (mark.figure.low, mark.figure.median, mark.figure.high))
    whose = "ours" if mark.ours else "theirs"
    return [
        f'<text x="{_LABELS - 8}" y="{middle + 4:.1f}" text-anchor="end">{escape(mark.label)}</text>',
        f'<rect x="{_LABELS}" y="{top + 4}" width="{end:.1f}" height="{_ROW - 8}" class="{whose}"/>',
        f'<line x1="{_LABELS + low:.1f}" x2="{_LABELS + high:.1f}" y1="{middle}" y2="{middle}"/>',
        f'<text x="{_LABELS + max(end, high) + 6:.1f}" y="{middle + 4:.1f}">{number(mark.figure.median)}</text>',
    ]
