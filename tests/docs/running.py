"""Runs the Python blocks of a page one after another in one namespace, as a reader would who types them in.

A block may await at its top. Functions that it defines as `test_…` are run too, with the kit's fixture. A block of
text that follows right after is what it prints; `…` in it stands for anything.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import re
from contextlib import redirect_stdout
from itertools import zip_longest
from pathlib import Path
from typing import Any

from flowfabric.testing import Kit
from tests.docs.pages import Fence, fences, name


class Wrong(AssertionError):
    """A page does not say what happens."""


def run(page: Path) -> int:
    """Runs a page; answers how many blocks of it ran."""
    return run_blocks(page, fences(page))


def run_blocks(page: Path, blocks: list[Fence]) -> int:
    """Runs these blocks as those of the page."""
    namespace: dict[str, Any] = {"__name__": "__main__", "__file__": str(page)}
    count = 0
    for block, following in zip_longest(blocks, blocks[1:]):
        if block.language == "python":
            printed = _run_block(page, block, namespace)
            count += 1
            if following is not None and following.language == "text" and following.follows_code:
                compare(page, following, printed)
    return count


def _run_block(page: Path, block: Fence, namespace: dict[str, Any]) -> str:
    # The lines of tracebacks are those of the page.
    source = "\n" * (block.line - 1) + block.text
    code = compile(source, name(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    known = dict(namespace)
    said = io.StringIO()
    with redirect_stdout(said):
        answer = eval(code, namespace)
        if inspect.iscoroutine(answer):
            asyncio.run(answer)
        for word, value in list(namespace.items()):
            if word.startswith("test_") and known.get(word) is not value:
                _run_test(value)
    return said.getvalue()


def _run_test(test: Any) -> None:
    given = {"kit": Kit} if "kit" in inspect.signature(test).parameters else {}
    answer = test(**given)
    if inspect.iscoroutine(answer):
        asyncio.run(answer)


def compare(page: Path, wanted: Fence, printed: str) -> None:
    """Raises if something else is printed than the page shows."""
    pattern = re.escape(wanted.text.strip()).replace("…", ".*?")
    if not re.fullmatch(pattern, printed.strip(), re.DOTALL):
        raise Wrong(f"{name(page)}:{wanted.line} shows\n{wanted.text}\nbut this is printed:\n{printed}")
