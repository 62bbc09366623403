"""The outside world of the programs: what happened in it, in order; seen by other processes too, if there is a file."""

from __future__ import annotations

import os
from pathlib import Path

FILE_VARIABLE = "PROGRAM_EFFECTS"
happened: list[str] = []


def happen(what: str) -> None:
    """Something happens that cannot be taken back."""
    happened.append(what)
    if path := os.environ.get(FILE_VARIABLE):
        with Path(path).open("a") as file:
            file.write(f"{what}\n")
