"""Checks of the documentation pages about the examples."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROGRAMS = ROOT / "examples"
PAGES = ROOT / "docs" / "examples"
OTHER_PROGRAMS = {"stage"}
NAMES = sorted(path.stem for path in PROGRAMS.glob("*.py") if path.stem not in OTHER_PROGRAMS)

# Patterns for text that differs between runs (times and the registered workers), with their replacements.
_MASKS = (
    (re.compile(r"(\d{4}-\d\d-\d\d )?\d\d:\d\d(:\d\d)? UTC"), "<time>"),
    (re.compile(r"; no live worker [^.]*"), ""),
)


def fences(page: str, language: str) -> list[str]:
    """Return the code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def snippet_problems(page: str, program: str) -> list[str]:
    """Return the page's Python blocks that are not in the program, or a message if the page has no Python block."""
    blocks = fences(page, "python")
    return [block for block in blocks if block not in program] or ([] if blocks else ["no lines of the program"])


def mask(text: str) -> str:
    """Return the text without the parts that differ between runs."""
    for pattern, replacement in _MASKS:
        text = pattern.sub(replacement, text)
    return text
