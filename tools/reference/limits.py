"""docs/reference/limits.md: every limit and default, with its present value."""

from __future__ import annotations

import ast
import inspect
from dataclasses import fields
from datetime import datetime, timedelta
from types import ModuleType
from typing import Any

from flowfabric.asgi import pages, reading
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

# Where limits are kept, and what each of them bounds. A constant of these modules that is not named here is an error.
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
    keyring: {"GRACE": "how long an old key verifies after a rotation, unless told; open waitpoints keep it longer"},
    key_file: {"FILE_CHARACTERS": "characters of a key file"},
    tokens: {"TOKEN_CHARACTERS": "characters of a token", "SOURCE_BYTES": "bytes of an approver's name in a token"},
    membership: {"MOST_CANCELLED": "siblings that a winner cancels in its own transaction; the rest follow at once"},
    subscribing: {"HOLD": "how long one process holds the name of a subscriber without a word"},
    reading: {
        "BODY_BYTES": "bytes of a request to `app.asgi()`",
        "JSON_DEPTH": "levels of the JSON in such a request",
    },
    pages: {"COMMENT_CHARACTERS": "characters of an approver's comment"},
}
# Constants of those modules that bound nothing.
_NOT_LIMITS = {
    "COMMENT_CHARACTERS",
    "LARGEST",
    "KID",
    "VERSION",
    "WAITPOINT",
    "NONCE_BYTES",
    "SCAN",
    "EMPTY",
    "REFUSED",
    "STYLE_HASH",
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
    found = {
        name
        for module, named in _LIMITS.items()
        for name in _own_constants(module)
        if _is_bound(getattr(module, name)) and name not in named
    }
    return found - _NOT_LIMITS


def _own_constants(module: ModuleType) -> set[str]:
    """The public constants that the module itself gives a value."""
    targets = [node.targets[0] for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.Assign)]
    names = {target.id for target in targets if isinstance(target, ast.Name)}
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
