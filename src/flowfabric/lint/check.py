"""`flowfabric check`: find code that misbehaves when a task runs again. The code is not imported.

The rules read the bodies of tasks, which are functions with the decorator `@<name>.task`. They also read the helpers in
the same module that a task calls, and the functions that run as steps. They report a problem only if it is certain. A
name that is imported from user code or has two definitions is therefore never reported.

A comment `# flowfabric: ignore[code]` on the same line suppresses a finding.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from flowfabric.lint.awaits import (
    RawFinding,
    find_asyncio_timers,
    find_raw_tasks,
    find_swallowed_unwinds,
    find_unawaited_calls,
)
from flowfabric.lint.resolve import NameResolver, is_task, iter_with_helpers, makes_durable_calls
from flowfabric.lint.rules import (
    find_clocks_and_randomness,
    find_missing_annotations,
    find_nested_steps,
    find_plain_awaits,
    find_plain_sleeps,
    find_set_orders,
    find_step_functions,
)
from flowfabric.lint.scopes import Function, Module, read_module, walk_own_nodes

# Every error code with its meaning.
CODES = {
    "app_check": "an error that the app's own check reports, such as an annotation that cannot be resolved",
    "asyncio_timeout": "an asyncio timer around a durable wait",
    "clock": "a clock reading in a task, which differs in each run",
    "no_annotation": "a parameter or result without an annotation",
    "not_awaited": "a durable call that is never awaited",
    "not_durable": "an await outside of a step, which runs again in each run",
    "plain_sleep": "a sleep that occupies the slot and does not survive a crash",
    "randomness": "a random value, which differs in each run",
    "raw_task": "durable calls or waits in an asyncio task",
    "set_order": "durable calls in the iteration order of a set",
    "step_in_step": "a durable call inside a step",
    "swallowed_unwind": "code that catches the unwinding of a suspended task",
    "syntax_error": "a file that Python cannot parse",
}

_IGNORE = re.compile(r"#\s*flowfabric:\s*ignore\[([\w,\s]*)\]")


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """A problem in the code: its location, its error code, and a message with the way to repair it."""

    path: str
    line: int
    column: int
    code: str
    message: str
    last_line: int = 0

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.code}: {self.message}"


def drop_ignored(findings: Iterable[Finding], source: bytes) -> list[Finding]:
    """Remove findings that have a comment `# flowfabric: ignore[code]` on their first or last line. Sort the others."""
    ignored = _read_ignored_codes(source)
    return sorted(
        finding
        for finding in set(findings)
        if finding.code not in ignored.get(finding.line, ()) and finding.code not in ignored.get(finding.last_line, ())
    )


def _read_ignored_codes(source: bytes) -> dict[int, set[str]]:
    """Return the error codes that are ignored on each line.

    Only real comments count, not strings that look like comments.
    """
    codes: dict[int, set[str]] = {}
    # In rare cases the tokenizer stops at source that the parser accepts. The comments after that source are then
    # ignored.
    with contextlib.suppress(tokenize.TokenError):
        for token in tokenize.tokenize(io.BytesIO(source).readline):
            if token.type == tokenize.COMMENT and (match := _IGNORE.search(token.string)):
                codes[token.start[0]] = {code.strip() for code in match[1].split(",")}
    return codes


def check_file(path: Path) -> list[Finding]:
    """Return the findings in a file, in line order."""
    return check_bytes(path.read_bytes(), path)


def check_text(source: str, path: Path) -> list[Finding]:
    """Return the findings in the text of a module; `path` is its real or intended location."""
    return check_bytes(source.encode(), path)


def check_bytes(source: bytes, path: Path) -> list[Finding]:
    """Return the findings in the encoded source of a module."""
    try:
        raw_findings = _check_module(read_module(ast.parse(source, str(path))), path.absolute())
        return drop_ignored([_make_finding(path, *each) for each in raw_findings], source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line, column = getattr(error, "lineno", None) or 1, getattr(error, "offset", None) or 1
        return [Finding(str(path), line, column, "syntax_error", f"the file cannot be parsed: {_error_text(error)}")]


def _check_module(module: Module, path: Path) -> Iterator[RawFinding]:
    tasks = [function for function in module.functions if is_task(function)]
    steps = find_step_functions(module)
    for function in {*tasks, *steps}:
        yield from find_missing_annotations(function)
    for function in steps:
        yield from find_nested_steps(function)
    for function in {helper for task in tasks for helper in iter_with_helpers(task, _should_follow)}:
        yield from _check_body(function, path)


def _should_follow(helper: Function) -> bool:
    """Return False for a coroutine without durable calls.

    For such a coroutine, the rules report the await in the task and do not read the body.
    """
    return not helper.is_async or makes_durable_calls(helper)


def _check_body(function: Function, path: Path) -> Iterator[RawFinding]:
    names = NameResolver(function.scope)
    for node in walk_own_nodes(function.node.body):
        yield from find_swallowed_unwinds(names, node)
        yield from find_raw_tasks(names, node)
        yield from find_asyncio_timers(names, node)
        yield from find_clocks_and_randomness(names, node)
        yield from find_set_orders(names, node)
    yield from find_unawaited_calls(function)
    yield from find_plain_sleeps(function)
    yield from find_plain_awaits(function, path)


def _make_finding(path: Path, node: ast.AST, code: str, message: str) -> Finding:
    assert code in CODES, "CODES has every code that a rule uses"
    line: int = getattr(node, "lineno", 1)
    column: int = getattr(node, "col_offset", 0)
    # The last line of a function or handler is a different statement, so an ignore comment must be on the first line.
    last = (node.end_lineno or line) if isinstance(node, ast.expr) else line
    return Finding(str(path), line, column + 1, code, message, last)


def _error_text(error: BaseException) -> str:
    return error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
