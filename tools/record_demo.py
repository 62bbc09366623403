"""Plays the demo without a terminal and writes what it tells to docs/demo.txt: `python3 dev.py demo --record`.

What differs from run to run, such as times and process ids, is replaced: a recording changes only with the demo.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
DEMO = ROOT / "examples" / "demo.py"
RECORDING = ROOT / "docs" / "demo.txt"
COMMAND = "$ python3 dev.py demo\n"

_MASKS = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "2026-01-01 12:00:00 UTC"),
    (r"process \d+", "process 4711"),
    (r"Worker '[^']+'", "Worker 'shop'"),
    (r"after [\d.]+ s", "after 2.0 s"),
    (r"^(    \+) *[\d.]+ s", r"\1 0.0 s"),
)


def masked(told: str) -> str:
    """What was told, without what differs from run to run."""
    for pattern, instead in _MASKS:
        told = re.sub(pattern, instead, told, flags=re.MULTILINE)
    return told


def narration(told: str) -> list[str]:
    """The headings and sentences; facts are indented and left out."""
    return [line for line in masked(told).splitlines() if line and not line.startswith(("    ", "$ "))]


def main() -> int:
    """Writes the recording if the demo came to its end."""
    played = subprocess.run(
        [sys.executable, DEMO], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False
    )
    if played.returncode == 0:
        RECORDING.write_text(COMMAND + masked(played.stdout), encoding="utf-8")
        sys.stdout.write(f"{RECORDING.relative_to(ROOT)} is written.\n")
    return played.returncode


if __name__ == "__main__":
    sys.exit(main())
