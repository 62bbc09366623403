"""Follow a page as a reader would: save its programs under their names, and type its commands in one shell.

A `python` block is saved under the name in the paragraph before it, such as "Save this as `shop.py`". The commands of a
`console` block run in bash. A `text` block directly after it is the expected output; `…` in it matches anything.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from tests.docs.pages import Fence, fences
from tests.docs.run_blocks import compare

# These commands prepare an environment, and the tests have one.
_PREPARES = re.compile(r"python3 -m venv |source |pip ")
_SAVED_AS = re.compile(r"[Ss]ave this (?:\w+ )*as `([\w./]+)`:?$")
_MARK = "@@ block"
_TIMEOUT_S = 120


def follow(page: Path, folder: Path, *, since: str = "", until: str = "") -> int:
    """Follow a page in a folder, from one heading to another, and return the number of compared outputs."""
    blocks = [
        fence
        for fence in fences(page)
        if (not since or f"\n{since}\n" in fence.before) and (not until or f"\n{until}\n" not in fence.before)
    ]
    return follow_blocks(page, blocks, folder)


def with_port(blocks: list[Fence], port: int) -> list[Fence]:
    """Return the blocks with another port in place of 8000, which may be in use."""
    return [replace(block, text=block.text.replace("8000", str(port))) for block in blocks]


def follow_blocks(page: Path, blocks: list[Fence], folder: Path) -> int:
    """Follow these blocks as if they were on the page, and return the number of compared outputs."""
    outputs = _run_in_bash("".join(_commands(number, block, folder) for number, block in enumerate(blocks)), folder)
    compared = 0
    for number, (block, following) in enumerate(pairwise(blocks)):
        if block.language == "console" and following.language == "text" and following.follows_code:
            compare(page, following, outputs[number])
            compared += 1
    return compared


def saved_as(block: Fence) -> str | None:
    """Return the file name under which a reader saves this block."""
    paragraph = block.before.removesuffix(f"```{block.language}\n").rstrip().rpartition("\n\n")[2]
    match = _SAVED_AS.search(" ".join(paragraph.split()))
    return match[1] if match else None


def _commands(number: int, block: Fence, folder: Path) -> str:
    name = saved_as(block)
    if name is not None:
        kept = folder / f".block{number}"
        kept.write_text(block.text, encoding="utf-8")
        return f"mkdir -p $(dirname {name}) && cp {kept.name} {name}\n"
    if block.language == "console":
        lines = [line for line in block.text.splitlines() if not _PREPARES.match(line)]
        return "\n".join([f"echo '{_MARK} {number}'", *lines, ""])
    return ""


def _run_in_bash(script: str, folder: Path) -> dict[int, str]:
    """Return what each block has printed. Background processes end with the shell."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLOWFABRIC")}
    environment = kept | {"PATH": f"{Path(sys.executable).parent}:{kept['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        ["bash", "-m", "-c", f"trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\n{script}"], cwd=folder, env=environment,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S,
    )  # fmt: skip
    sys.stderr.write(done.stderr)
    parts = re.split(rf"^{_MARK} (\d+)\n", done.stdout, flags=re.MULTILINE)
    return {int(number): text for number, text in zip(parts[1::2], parts[2::2], strict=True)}
