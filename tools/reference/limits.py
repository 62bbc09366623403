"""docs/reference/limits.md: every limit and default, with its present value."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from dataclasses import fields
from datetime import datetime, timedelta
from types import ModuleType
from typing import Any

import flowfabric
from flowfabric.asgi import pages, reading
from flowfabric.cli import exit_codes
from flowfabric.core import (
    conditions,
    continuing,
    key_file,
    keyring,
    limits,
    membership,
    subscribing,
    suspending,
    tokens,
)
from flowfabric.core.policy import DEFAULT_BACKOFF, DEFAULT_POLICY, Backoff
from flowfabric.engine import connecting
from flowfabric.engine import workers as register
from flowfabric.ops import backlog
from flowfabric.ops import reading as counting
from flowfabric.sdk import failures, parking
from flowfabric.worker import worker

# Where limits are kept, and what each of them bounds. A public constant of any module that is named neither here nor
# below is an error.
_LIMITS: dict[ModuleType, dict[str, str]] = {
    limits: {
        "PAYLOAD_BYTES": "bytes of the input of an execution, of its result, and of the result of one step",
        "STEPS_PER_EXECUTION": "records in the journal of one execution; `continue_with` begins an empty one",
        "SIGNAL_BYTES": "bytes of the payload of a signal or callback",
        "TEXT_BYTES": "bytes of free text such as a reason or a comment",
        "NAME_CHARACTERS": "characters of a kind, lane, key or other name; printable, no space at either end",
        "TAGS": "tags of one execution; keys look like `team.owner`",
        "TAG_VALUE_BYTES": "bytes of the value of a tag",
        "CAPABILITIES": "capabilities that an execution requires or a worker offers",
        "CAPABILITIES_BYTES": "bytes of all of them together",
        "PRIORITY_MOST": "the highest priority; what is above or below 0 is clamped",
        "BATCH": "items of one call that takes several, such as `submit_many` of the engine, or names in a list",
        "GRAPH_MEMBERS": "members of a flow in one submit; more can be added later",
        "STANDING": "signals that a task declares",
        "LEASE_TTL_LEAST": "the shortest lease",
        "LEASE_TTL_MOST": "the longest lease",
        "DURATION_MOST": "the longest of all other durations",
        "COUNT_MOST": "the highest number of retries, replays and the like",
        "EARLIEST": "the earliest time that is accepted",
        "LATEST": "the latest time that is accepted",
    },
    conditions: {
        "NESTING": "levels of a condition",
        "LEAVES": "leaves of a condition",
        "WAITPOINTS": "waitpoints of a condition, and so of one wait",
        "TOTAL_N": "the n of all `Count`s of a condition together",
    },
    suspending: {"MOST_OPEN": "waitpoints that are open at once on one execution"},
    continuing: {"REPORT_BYTES": "bytes of the report of a divergence"},
    keyring: {
        "GRACE": "how long an old key verifies after a rotation, unless told; open waitpoints keep it longer",
        "KID_CHARACTERS": "characters of the name of a key, 1 at least: letters, digits, `_` and `-`",
    },
    key_file: {"FILE_CHARACTERS": "characters of a key file"},
    tokens: {"TOKEN_CHARACTERS": "characters of a token", "SOURCE_BYTES": "bytes of an approver's name in a token"},
    membership: {"MOST_CANCELLED": "siblings that a winner cancels in its own transaction; the rest follow at once"},
    subscribing: {"HOLD": "how long one process holds the name of a subscriber without a word"},
    reading: {
        "BODY_BYTES": "bytes of a request to `app.asgi()`",
        "JSON_DEPTH": "levels of the JSON in such a request",
    },
    pages: {"COMMENT_CHARACTERS": "characters of an approver's comment on the page of a link"},
    worker: {"MOST_SLOTS": "`concurrency=` of a worker: executions at once"},
    register: {"MOST_SLOTS": "slots that a worker says to have in the register"},
    parking: {"MOST_TOGETHER": "waits that the branches of one execution have open at once; children are not counted"},
    failures: {
        "MESSAGE_CHARACTERS": "characters that are kept of the message of a failure",
        "TRACEBACK_CHARACTERS": "characters that are kept of its traceback",
    },
    connecting: {
        "STATEMENT_TIMEOUT_MOST": "the longest `statement_timeout=` of a store; 1 second is the shortest",
        "POOL_SIZE_MOST": "connections of one process to PostgreSQL, `pool_size=`",
    },
    counting: {"COUNTED_EXACTLY": "executions in one state that `count()` counts one by one; above, it estimates"},
    backlog: {"COUNTED_EXACTLY": "executions that wait, alike in lane, kind and capabilities, that `backlog()` counts"},
}
# Public constants that are numbers or times and bound nothing that a user meets.
_NOT_LIMITS = {
    "batching": {"MOST_TOGETHER", "ENOUGH_FOR_ANOTHER"},
    "cli.exit_codes": set(map(str, vars(exit_codes))),
    "core.flows": {"DEPENDENCIES"},
    "core.limits": {"LARGEST"},
    "core.looking": {"MOST_SIGNALS"},
    "core.subscribing": {"SCAN"},
    "core.tokens": {"NONCE_BYTES"},
    "core.purging": {"ROWS"},
    "core.trimming": {"PAGE", "POSTPONED"},
    "reconcilers.duty": {"BATCH", "REMOVED"},
    "sdk.journal": {"KEYED"},
}
_POLICY = {
    "max_retries": "`retries=`: tries after the first, of the body and of each step",
    "backoff": "`backoff=`: see below",
    "retryable_categories": "categories that are retried; none means all",
    "attempt_timeout": "`timeout=`: how long one attempt may run, waits not counted",
    "on_attempt_timeout": "what an attempt that ran out of its time means",
    "deadline": "`deadline=`: how long the whole execution may take, waits counted",
    "lease_ttl": "`lease=` of the worker: how long it may be silent before another takes over",
    "on_lease_loss": "what happens then: it is queued again, or kept for a hand-off",
    "max_reclaims": "lost leases before the execution fails",
    "max_replays": "replays of one execution",
    "max_signals": "signals that one execution takes",
    "dedup_window": "how long the key of a submit is remembered",
    "retention": "`retention=`: how long an execution is kept after it has ended",
}
_BACKOFF = {
    "kind": "how the delay grows",
    "initial": "the first delay",
    "multiplier": "by which it grows with each retry",
    "most": "the longest delay",
    "jitter": "whether the delay is drawn at random between 0 and its length",
}


def page() -> str:
    """The whole page."""
    bounds = [
        f"| {what} | {_shown(getattr(module, name), name)} |"
        for module, of in _LIMITS.items()
        for name, what in of.items()
    ]
    return "\n\n".join([
        _HEAD, "\n".join(["| what | limit |", "|---|---|", *bounds]),
        "## Defaults of an execution",
        "`@app.task(…)` sets what has a keyword here, `.options(…)` some of it; `Policy` of the engine has all of it.",
        _defaults(DEFAULT_POLICY, _POLICY),
        "### Backoff",
        "`Backoff(…)`. The first delay is `initial`; each is `multiplier` times the one before, at most `most`.",
        _defaults(DEFAULT_BACKOFF, _BACKOFF),
    ]) + "\n"  # fmt: skip


def missing() -> set[str]:
    """Limits that the page does not name."""
    known = {module.__name__: set(named) for module, named in _LIMITS.items()}
    return {
        f"{module.__name__}.{name}"
        for module in _modules()
        for name in _own_constants(module) - known.get(module.__name__, set())
        if _is_bound(getattr(module, name)) and name not in _NOT_LIMITS.get(_short(module), set())
    }


def _modules() -> Iterator[ModuleType]:
    """Every module of the package; `__main__` would run the command."""
    for found in pkgutil.walk_packages(flowfabric.__path__, "flowfabric."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def _short(module: ModuleType) -> str:
    return module.__name__.removeprefix("flowfabric.")


def _own_constants(module: ModuleType) -> set[str]:
    """The public constants that the module itself gives a value."""
    body = ast.parse(inspect.getsource(module)).body
    targets = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
    targets += [node.target for node in body if isinstance(node, ast.AnnAssign)]
    names = {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return {name for name in names if name.isupper() and not name.startswith("_")}


def _is_bound(value: object) -> bool:
    return isinstance(value, int | timedelta | datetime) and not isinstance(value, bool)


def _defaults(record: Any, meaning: dict[str, str]) -> str:
    rows = [
        f"| `{item.name}` | {meaning[item.name]} | {_shown(getattr(record, item.name))} |" for item in fields(record)
    ]
    return "\n".join(["| field | what it says | default |", "|---|---|---|", *rows])


def _shown(value: Any, name: str = "") -> str:
    match value:
        case Backoff():
            return "`Backoff()`"
        case bool() | None | ():
            return {True: "yes", False: "no", None: "none", (): "none"}[value]
        case int() if name.endswith("_BYTES") and value >= 1024 and value % 1024 == 0:
            return f"{value // 1024**2} MiB" if value % 1024**2 == 0 else f"{value // 1024} KiB"
        case int():
            return f"{value:,}"
        case timedelta():
            return _span(value)
        case datetime():
            return f"{value:%Y-%m-%d}"
        case str():
            return f"`{value}`"
    return str(value)


def _span(value: timedelta) -> str:
    seconds = int(value.total_seconds())
    for length, unit in ((86400, "day"), (3600, "hour"), (1, "second")):
        if seconds % length == 0 and seconds >= length and not (length == 86400 and seconds == 86400):
            count = seconds // length
            return f"{count:,} {unit}{'s' if count != 1 else ''}"
    return str(value)


_HEAD = """# Limits and defaults

<!-- Written by tools/generate_reference.py from the constants and defaults of the sources. Change what it reads. -->

All limits are checked before anything is written, and the error says the limit. Most are `InvalidRequest` with the code
`payload_too_large`, `out_of_range` or `invalid_name`; see [errors by code](errors.md). Larger data belongs elsewhere:
store it, and pass its address."""
