"""What `flowfabric check` finds, and how a line says that it is meant."""

from __future__ import annotations

import contextlib
import io
import re
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass

# Every code, and what it is about.
CODES = {
    "app_check": "what the app itself refuses, such as an annotation that cannot be resolved",
    "asyncio_timeout": "a timer of asyncio around a durable wait",
    "clock": "the time of this process in a task",
    "no_annotation": "a parameter or result whose type is not known",
    "not_awaited": "a durable call that is made and never awaited",
    "not_durable": "an await that runs again at each re-run",
    "plain_sleep": "a sleep that keeps its slot and is forgotten by a crash",
    "randomness": "chance that differs at each re-run",
    "raw_task": "durable calls or waits in a task of asyncio",
    "set_order": "durable calls in the order of a set",
    "step_in_step": "a durable call inside a step",
    "swallowed_unwind": "the unwinding of a suspended task is caught",
    "syntax_error": "a file that Python cannot read",
}

_IGNORE = re.compile(r"#\s*flowfabric:\s*ignore\[([\w,\s]*)\]")


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One thing that was found: where it is, its code, and what to do."""

    path: str
    line: int
    column: int
    code: str
    message: str
    last_line: int = 0

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.code}: {self.message}"


def not_silenced(findings: Iterable[Finding], source: str) -> list[Finding]:
    """The findings without those whose first or last line says `# flowfabric: ignore[code]`."""
    ignored = _ignored(source)
    return sorted(
        item
        for item in set(findings)
        if item.code not in ignored.get(item.line, ()) and item.code not in ignored.get(item.last_line, ())
    )


def _ignored(source: str) -> dict[int, set[str]]:
    """The codes that each line ignores. Only comments count, not text that looks like one."""
    found: dict[int, set[str]] = {}
    # What the parser has read but the tokenizer cannot is rare, and ends the comments there.
    with contextlib.suppress(tokenize.TokenError):
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT and (said := _IGNORE.search(token.string)):
                found[token.start[0]] = {code.strip() for code in said[1].split(",")}
    return found
