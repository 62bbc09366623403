"""Run the demo without a terminal and write its output to docs/demo.txt: `python3 dev.py demo --record`.

Times, process ids and other values that differ between runs are replaced, so a recording changes only with the demo.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
RECORDING = ROOT / "docs" / "demo.txt"
COMMAND = "$ flowfabric demo\n"
DEMO = (sys.executable, "-m", "flowfabric", "demo")

_MASKS = (
    (r"(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d UTC", "12:00:00 UTC"),
    (r"(?:\d{4}-\d\d-\d\d )?\d\d:\d\d UTC", "12:00 UTC"),
    (r"process \d+", "process 4711"),
    (r'on worker "[^"]+"', 'on worker "shop"'),
    (r"after [\d.]+ s", "after 2.0 s"),
    (r"^(    \+) *[\d.]+ s", r"\1 0.0 s"),
)


def masked(told: str) -> str:
    """Return the output with fixed values in place of times, process ids and worker names."""
    for pattern, instead in _MASKS:
        told = re.sub(pattern, instead, told, flags=re.MULTILINE)
    return told


def narration(told: str) -> list[str]:
    """Return only the headings and sentences of the output, without commands and indented lines."""
    return [line for line in masked(told).splitlines() if line and not line.startswith(("    ", "$ "))]


def main() -> int:
    """Run the demo and write the recording if it succeeds."""
    played = subprocess.run(DEMO, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
    if played.returncode == 0:
        RECORDING.write_text(COMMAND + masked(played.stdout), encoding="utf-8")
        sys.stdout.write(f"{RECORDING.relative_to(ROOT)} is written.\n")
    return played.returncode


if __name__ == "__main__":
    sys.exit(main())
