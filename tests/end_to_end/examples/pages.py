"""The pages about the examples, as far as a machine can judge them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROGRAMS = ROOT / "examples"
PAGES = ROOT / "docs" / "examples"
NO_EXAMPLES = {"demo", "stage"}
NAMES = sorted(path.stem for path in PROGRAMS.glob("*.py") if path.stem not in NO_EXAMPLES)

# What differs from run to run: times, and who had registered by then.
_MASKS = (
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"), "<time>"),
    (re.compile(r"; no live worker [^.]*"), ""),
)


def fences(page: str, language: str) -> list[str]:
    """The blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def snippet_problems(page: str, program: str) -> list[str]:
    """Blocks of Python that do not stand in the program, word for word; and that there is none at all."""
    blocks = fences(page, "python")
    return [block for block in blocks if block not in program] or ([] if blocks else ["no lines of the program"])


def masked(text: str) -> str:
    """A text without what differs from run to run."""
    for mask, instead in _MASKS:
        text = mask.sub(instead, text)
    return text
