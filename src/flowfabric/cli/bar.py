"""A bar that fills while something goes on; on a terminal only, and beside the output."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Self

from flowfabric.cli.screen import escaped, screen

_CELLS = 24


class Bar:
    """`with Bar("submit", 100) as bar: bar.to(50)`. Without a terminal nothing is shown."""

    def __init__(self, label: str, total: int) -> None:
        self._label, self._total = escaped(label), max(total, 1)
        self._shown = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._screen = screen(sys.stderr)
        self._last = ""

    def __enter__(self) -> Self:
        self.to(0)
        return self

    def to(self, done: int, note: str = "") -> None:
        """Shows that so much is done."""
        share = min(max(done, 0), self._total) / self._total
        full = round(share * _CELLS)
        line = f"{self._label} [{'#' * full}{'.' * (_CELLS - full)}] {share:4.0%} {escaped(note)}".rstrip()
        self._show(self._screen.cut(line, (self._screen.width or 80) - 1))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._show("")

    def _show(self, line: str) -> None:
        if self._shown and line != self._last:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
            self._last = line
