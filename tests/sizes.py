"""How much of a fault is enough: a few in a plain run of the tests, many where it is proved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

Count = TypeVar("Count")


@dataclass(frozen=True)
class Size:
    """The size of a run: short, full (`--full`, what a change must pass) or long (`--all`)."""

    name: Literal["short", "full", "long"]

    def of(self, short: Count, full: Count, long: Count) -> Count:
        """The one of three counts that fits the run."""
        return {"short": short, "full": full, "long": long}[self.name]
