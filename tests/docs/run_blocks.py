"""Run the Python blocks of a page in order in one namespace, as a reader who types them in would.

A block may await at its top level. If it defines functions named `test_…`, they run too, with the kit
fixture. If a text block follows directly, it is the expected output of the Python block; `…` in it matches anything.
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


class PageMismatch(AssertionError):
    """The output of a page differs from the text that it shows."""


def run(page: Path) -> int:
    """Run the blocks of a page and return their number."""
    return run_blocks(page, fences(page))


def run_blocks(page: Path, blocks: list[Fence]) -> int:
    """Run these blocks as if they were on the page, and return the number of Python blocks."""
    namespace: dict[str, Any] = {"__name__": "__main__", "__file__": str(page)}
    count = 0
    # One event loop for all blocks that await, as in a notebook.
    with asyncio.Runner() as runner:
        for block, following in zip_longest(blocks, blocks[1:]):
            if block.language == "python":
                printed = _run_block(page, block, namespace, runner)
                count += 1
                if following is not None and following.language == "text" and following.follows_code:
                    compare(page, following, printed)
    return count


def _run_block(page: Path, block: Fence, namespace: dict[str, Any], runner: asyncio.Runner) -> str:
    # Add empty lines, so that tracebacks show the line numbers of the page.
    source = "\n" * (block.line - 1) + block.text
    code = compile(source, name(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    names_before = dict(namespace)
    output = io.StringIO()
    with redirect_stdout(output):
        result = eval(code, namespace)
        if inspect.iscoroutine(result):
            runner.run(result)
        for defined_name, value in list(namespace.items()):
            if defined_name.startswith("test_") and names_before.get(defined_name) is not value:
                _run_test(value)
    return output.getvalue()


def _run_test(test: Any) -> None:
    fixtures = {"kit": Kit} if "kit" in inspect.signature(test).parameters else {}
    result = test(**fixtures)
    if inspect.iscoroutine(result):
        asyncio.run(result)


def compare(page: Path, expected: Fence, printed: str) -> None:
    """Raise if the output differs from the text on the page."""
    pattern = re.escape(expected.text.strip()).replace("…", ".*?")
    if not re.fullmatch(pattern, printed.strip(), re.DOTALL):
        raise PageMismatch(f"{name(page)}:{expected.line} shows\n{expected.text}\nbut this is printed:\n{printed}")
