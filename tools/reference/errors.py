"""Generate docs/reference/errors.md with every error code, its class and its messages."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import flowfabric
from flowfabric import FlowFabricError
from flowfabric.core.executions.transitions import TRANSITIONS
from flowfabric.lint import CODES
from tools.reference.sources import Place, advice_beside, argument, filled_in, places, texts, words

CLASSES = ("InvalidRequest", "Refused", "NotFound", "Conflict", "Unavailable")
_SHOWN = 2
_MEANING = {
    "InvalidRequest": "The call is invalid in every state. Nothing was written. Change the call.",
    "Refused": "The current state forbids the call. Nothing was written. Use `error.fields` to decide how to continue.",
    "NotFound": "The object does not exist in this namespace.",
    "Conflict": "The call contradicts a recorded fact. Nothing was written.",
    "Unavailable": "The store is not available. The call may or may not have taken effect. It is safe to repeat.",
    "others": "Errors in durable functions. The awaited call raises most of them.",
}
# Descriptions of messages that the code assembles in a way that this tool cannot read.
_SAID = {
    "all_failed": "all {count} calls of the race failed: {failures}",
    "backup_unsupported": "a PostgreSQL store is backed up with pg_dump and restored with pg_restore",
    "diverged": "a report that compares the recorded calls with the calls of the current code",
    "execution_cancelled": "the execution was cancelled: {reason}",
    "execution_expired": "the execution ran out of time: {reason}",
    "execution_failed": "the execution failed: {type}: {message}",
    "execution_skipped": "the execution was skipped: {reason}",
    "invalid_input": "INPUT does not fit {task}: {reason}; pass the parameters by name as JSON",
    "input_mismatch": "the stored input does not fit {function}: {reason}",
    "permanent_error": "your own message",
    "step_failed": "{path} failed: {type}: {message}; declare raises=[{type}] to catch it by class",
    "value_refused": "{value} cannot be stored as {type}: {reason}",
    "wait_overridden": "{by} ended the wait: {reason}",
}


@dataclass(frozen=True, slots=True)
class Raised:
    """An error that one place in the code raises."""

    kind: str
    code: str
    says: tuple[str, ...] = ()


def page() -> str:
    """Return the text of the page."""
    parts = [_HEAD]
    for kind in (*CLASSES, "others"):
        rows = sorted({item.code for item in raised() if _group(item.kind) == kind})
        parts += [f"## {'Durable functions' if kind == 'others' else kind}", _MEANING[kind]]
        parts.append("\n".join(["| code | message |", "|---|---|", *(_row(code, kind) for code in rows)]))
    findings = [f'| <a id="{code}"></a>`{code}` | {_cell(about)} |' for code, about in sorted(CODES.items())]
    parts += ["## Findings of `flowfabric check`", _CHECK, "\n".join(["| code | about |", "|---|---|", *findings])]
    return "\n\n".join(parts) + "\n"


def codes() -> set[str]:
    """Return all error codes."""
    return {item.code for item in raised()}


@cache
def raised() -> tuple[Raised, ...]:
    """Return all errors that the sources raise."""
    found = [item for place in places() for item in _made(place)]
    for code in {item.refusal for item in TRANSITIONS}:
        names = dict.fromkeys(item.name for item in TRANSITIONS if item.refusal == code)
        said = f"execution {{id}} is {{state}} at epoch {{epoch}}: {{{', '.join(names)}}} is not possible in this state"
        found.append(Raised("Refused", code, (said,)))
    return tuple(sorted(set(found), key=lambda item: (item.kind, item.code, item.says)))


def _made(place: Place) -> Iterator[Raised]:
    owner, call = place.owner, place.call
    if place.name == "__init__" and owner is not None and owner.name in _own_classes():
        yield from _with_code(place, owner.name, argument(call, 0, "code"), argument(call, 1, "message"))
    elif place.name in CLASSES:
        yield from _with_code(place, place.name, argument(call, 0, "code"), argument(call, 1, "message"))
    elif place.name == "refusal":
        yield from _with_code(place, "Refused", argument(call, 1, "code"), argument(call, 2, "what"))
    elif place.name in _own_classes():
        code = argument(call, 10_000, "code")
        yield from _with_code(place, place.name, code, argument(call, 0, "message"))


def _with_code(place: Place, kind: str, code: ast.expr | None, message: ast.expr | None) -> Iterator[Raised]:
    """Yield the errors that one call raises. If its code and message are parameters, combine those of each caller."""
    if place.function is not None and place.function.name == "refusal":
        return  # The callers of this function pass the code, and are read separately.
    for word in words(code, place):
        said = texts(message, place) or _messages(place, code, message, word)
        advice = advice_beside(word, place)
        yield Raised(kind, word, tuple(text.replace("{advice}", advice) if advice else text for text in said))


def _messages(place: Place, code: ast.expr | None, message: ast.expr | None, word: str) -> list[str]:
    if not isinstance(code, ast.Name) or not isinstance(message, ast.Name):
        return []
    said = {caller.call: texts(value, caller) for caller, value in filled_in(place, message.id)}
    return [
        text
        for caller, value in filled_in(place, code.id)
        if word in words(value, caller)
        for text in said.get(caller.call, ())
    ]


def _own_classes() -> set[str]:
    values = {name: getattr(flowfabric, name) for name in flowfabric.__all__}
    own = {name for name, value in values.items() if inspect.isclass(value) and issubclass(value, FlowFabricError)}
    return own - {*CLASSES, "FlowFabricError"}


def _group(kind: str) -> str:
    return kind if kind in CLASSES else "others"


def _row(code: str, group: str) -> str:
    same = [item for item in raised() if item.code == code and _group(item.kind) == group]
    read = dict.fromkeys(text for item in same for text in item.says if not text.startswith("killed by the test"))
    says = [_SAID[code]] if code in _SAID else [*read][:_SHOWN]
    if not says:
        raise LookupError(f"no message for {code}; add it to _SAID")
    kinds = sorted({item.kind for item in same}) if group == "others" else []
    named = f"`{code}`" + (f" ({', '.join(f'`{kind}`' for kind in kinds)})" if kinds else "")
    return f'| <a id="{code}"></a>{named} | {" / ".join(_cell(text) for text in says)} |'


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


_CHECK = """The command prints these findings, which are not errors. The comment `# flowfabric: ignore[code]` on a line
suppresses a finding."""

_HEAD = """# Errors by code

<!-- Written by tools/generate_reference.py from the sources. Do not edit. -->

Every error of FlowFabric is a `FlowFabricError`. It has a `code` to program against, `fields` with the values behind
the message, and a `message` with the next action. Codes are stable; messages are for people and may change.
`str(error)` is `code: message`.

Parts in { } are placeholders. [Retries and failures](../guides/retries.md) shows how to catch errors in a task."""
