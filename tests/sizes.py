"""How much of a fault is enough: a few in a plain run of the tests, many where it is proved."""

from __future__ import annotations

import os
import random
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

    @property
    def seed(self) -> int:
        """What chance begins with: a change is judged by the same draws every time, and a long run looks for new ones.
        FLOWFABRIC_SEED repeats one."""
        drawn = self.of(1, 2, random.randrange(2**32))
        return int(os.environ.get("FLOWFABRIC_SEED", drawn))
