"""The bars of the contract: every figure is printed beside what it must reach, and a miss is remembered."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Report:
    """Prints figures as they come, and remembers which bars were missed."""

    missed: list[str] = field(default_factory=list)
    binds: bool = True

    def beside(self) -> Report:
        """A report of figures whose bars are set for the other backend: they are shown, and miss nothing."""
        return Report(binds=False)

    def say(self, text: str) -> None:
        print(text, flush=True)

    def at_least(self, bar: str, figure: float, least: float, text: str) -> None:
        """A figure that must not be below its bar."""
        self._judge(bar, operator.ge, figure, least, text, "at least")

    def at_most(self, bar: str, figure: float, most: float, text: str) -> None:
        """A figure that must not be above its bar."""
        self._judge(bar, operator.le, figure, most, text, "at most")

    def _judge(
        self, bar: str, holds: Callable[[float, float], bool], figure: float, limit: float, text: str, words: str
    ) -> None:
        verdict = "met" if holds(figure, limit) else "MISSED"
        if self.binds and verdict == "MISSED":
            self.missed.append(bar)
        note = f"{words} {limit:g}, {verdict}" if self.binds else f"{words} {limit:g} on the other backend"
        self.say(f"{text}   [{bar}: {note}]")
