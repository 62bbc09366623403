"""The side effects of the programs, in order. If a file is configured, other processes can read them there."""

from __future__ import annotations

import os
from pathlib import Path

FILE_VARIABLE = "PROGRAM_EFFECTS"
recorded_effects: list[str] = []


def record_effect(effect: str) -> None:
    """Record a side effect that cannot be undone."""
    recorded_effects.append(effect)
    if path := os.environ.get(FILE_VARIABLE):
        with Path(path).open("a") as file:
            file.write(f"{effect}\n")
