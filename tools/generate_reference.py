#!/usr/bin/env python3
"""Writes the pages of the documentation that say what the code says: names, errors, events, limits, states.

usage: python tools/generate_reference.py [--check]

    docs/reference/api.md, engine-api.md   signatures and docstrings of the public names
    docs/reference/errors.md               the codes that the sources raise, and what they say
    docs/reference/events.md               the events of the transition table, and the others
    docs/reference/limits.md               the constants and defaults
    docs/concepts.md                       the diagram and table of states, between two marks

With `--check` nothing is written, and the exit code says whether the pages are as they would be.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.reference import api, errors, events, limits, states  # noqa: E402

DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"


def concepts() -> str:
    """The page of concepts with the present diagram and table."""
    before, _, rest = (DOCS / "concepts.md").read_text(encoding="utf-8").partition(states.BEGIN)
    _, _, after = rest.partition(states.END)
    return f"{before}{states.section()}{after}"


PAGES: dict[Path, Callable[[], str]] = {
    REFERENCE / "api.md": api.page,
    REFERENCE / "engine-api.md": api.engine_page,
    REFERENCE / "errors.md": errors.page,
    REFERENCE / "events.md": events.page,
    REFERENCE / "limits.md": limits.page,
    DOCS / "concepts.md": concepts,
}


def stale() -> list[Path]:
    """The pages that are not as they would be written."""
    return [path for path, write in PAGES.items() if not path.exists() or path.read_text(encoding="utf-8") != write()]


def main(arguments: list[str]) -> int:
    found = stale()
    for path in found:
        if "--check" in arguments:
            _say(f"{path.relative_to(ROOT)} is not what tools/generate_reference.py writes; run it")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(PAGES[path](), encoding="utf-8")
            _say(f"wrote {path.relative_to(ROOT)}")
    return int("--check" in arguments and bool(found))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
