#!/usr/bin/env python3
"""Generate the documentation pages that are derived from the code: names, errors, events, limits and states.

usage: python tools/generate_reference.py [--check]

    docs/reference/api.md, engine-api.md   signatures and docstrings of the public names
    docs/reference/errors.md               the error codes and messages in the sources
    docs/reference/events.md               all events, of transitions and of other changes
    docs/reference/limits.md               the constants and defaults
    docs/reference/states.md               the diagram of states and the table of transitions

With `--check` nothing is written, and the exit code is 1 if a page is not up to date.
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


PAGES: dict[Path, Callable[[], str]] = {
    REFERENCE / "api.md": api.page,
    REFERENCE / "engine-api.md": api.engine_page,
    REFERENCE / "errors.md": errors.page,
    REFERENCE / "events.md": events.page,
    REFERENCE / "limits.md": limits.page,
    REFERENCE / "states.md": states.page,
}


def stale() -> list[Path]:
    """Return the pages that are not up to date."""
    return [path for path, write in PAGES.items() if not path.exists() or path.read_text(encoding="utf-8") != write()]


def main(arguments: list[str]) -> int:
    found = stale()
    for path in found:
        if "--check" in arguments:
            _say(f"{path.relative_to(ROOT)} is not up to date; run tools/generate_reference.py")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(PAGES[path](), encoding="utf-8")
            _say(f"wrote {path.relative_to(ROOT)}")
    return int("--check" in arguments and bool(found))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
