"""`flowfabric check`: looks for what goes wrong when a task runs again, in its text alone; nothing is imported.

Looked at are the bodies of tasks, which are functions under `@<something>.task`, with the helpers of the same module
that they call, and the functions that are used as steps. Only what is certain is told: of a name from elsewhere, or of
one that is bound in two ways, nothing is said. `# flowfabric: ignore[code]` on its line says that something is meant.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

from flowfabric.sdk.checking.awaiting import Found, not_awaited, raw_tasks, swallowed, timers
from flowfabric.sdk.checking.findings import CODES, Finding, not_silenced
from flowfabric.sdk.checking.meaning import is_task, makes_durable, with_helpers
from flowfabric.sdk.checking.replaying import clocks_and_chance, plain_awaits, set_orders, sleeps
from flowfabric.sdk.checking.scopes import Function, Module, read_module
from flowfabric.sdk.checking.signatures import missing_annotations, step_functions, steps_in_steps

__all__ = ["CODES", "Finding", "check_file", "check_text"]


def check_file(path: Path) -> list[Finding]:
    """What is found in a file, in the order of its lines."""
    return check_bytes(path.read_bytes(), path)


def check_text(source: str, path: Path) -> list[Finding]:
    """What is found in the text of a module that is, or would be, at this path."""
    return check_bytes(source.encode(), path)


def check_bytes(source: bytes, path: Path) -> list[Finding]:
    """What is found in a module as it is stored."""
    try:
        found = _look_at(read_module(ast.parse(source, str(path))), path.absolute())
        return not_silenced([_finding(path, *each) for each in found], _decoded(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line, column = getattr(error, "lineno", None) or 1, getattr(error, "offset", None) or 1
        return [Finding(str(path), line, column, "syntax_error", f"this cannot be read: {_said(error)}")]


def _look_at(module: Module, path: Path) -> Iterator[Found]:
    tasks = [function for function in module.functions if is_task(function)]
    steps = step_functions(module)
    for function in {*tasks, *steps}:
        yield from missing_annotations(function)
    for function in steps:
        yield from steps_in_steps(function)
    for function in {helper for task in tasks for helper in with_helpers(task, _is_followed)}:
        yield from _look_at_body(function, path)


def _is_followed(helper: Function) -> bool:
    """A coroutine without durable calls is pointed at where it is awaited; what it does is then a step's business."""
    return not helper.is_async or makes_durable(helper)


def _look_at_body(function: Function, path: Path) -> Iterator[Found]:
    for rule in (swallowed, raw_tasks, timers, not_awaited, clocks_and_chance, sleeps, set_orders):
        yield from rule(function)
    yield from plain_awaits(function, path)


def _finding(path: Path, node: ast.AST, code: str, message: str) -> Finding:
    assert code in CODES, "every code is documented"
    line: int = getattr(node, "lineno", 1)
    column: int = getattr(node, "col_offset", 0)
    # The last line of a whole function or handler is about something else.
    last = (node.end_lineno or line) if isinstance(node, ast.expr) else line
    return Finding(str(path), line, column + 1, code, message, last)


def _decoded(source: bytes) -> str:
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    return source.decode(encoding)


def _said(error: BaseException) -> str:
    return error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
