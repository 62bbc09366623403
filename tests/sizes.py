"""The size of a test run: tests repeat their work a few times in a plain run and many times in a full run."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import Literal, TypeVar

Count = TypeVar("Count")


@dataclass(frozen=True)
class Size:
    """The size of a run: short, full (`--full`, required for a change) or long (`--all`)."""

    name: Literal["short", "full", "long"]

    def of(self, short: Count, full: Count, long: Count) -> Count:
        """Return the count that matches the size of the run."""
        return {"short": short, "full": full, "long": long}[self.name]

    @property
    def seed(self) -> int:
        """The random seed. It is fixed in short and full runs and random in long ones. FLOWFABRIC_SEED overrides it."""
        drawn = self.of(1, 2, random.randrange(2**32))
        return int(os.environ.get("FLOWFABRIC_SEED", drawn))
