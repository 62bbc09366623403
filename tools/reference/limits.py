"""Generate docs/reference/limits.md with the current value of every limit and default."""

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
from flowfabric.cli import exit_codes
from flowfabric.core import validation as limits
from flowfabric.core.events import subscribers as subscribing
from flowfabric.core.executions import attempts as continuing
from flowfabric.core.executions import postpone as postponing
from flowfabric.core.flows import resolution as membership
from flowfabric.core.policy import DEFAULT_BACKOFF, DEFAULT_POLICY, Backoff
from flowfabric.core.tokens import key_file
from flowfabric.core.tokens import key_ring as keyring
from flowfabric.core.tokens import token as tokens
from flowfabric.core.waits import conditions, prompts, schemas
from flowfabric.core.waits import suspend as suspending
from flowfabric.engine import opener as connecting
from flowfabric.engine import workers as register
from flowfabric.ops.executions import read as counting
from flowfabric.runtime import waits as parking
from flowfabric.values import failures
from flowfabric.web import pages
from flowfabric.web import request as reading
from flowfabric.worker import worker

# The modules that define limits, and the meaning of each limit. Every public constant with a number or a duration must
# be listed here or in `_NOT_LIMITS`.
_LIMITS: dict[ModuleType, dict[str, str]] = {
    limits: {
        "MAX_PAYLOAD_BYTES": "bytes of the input of an execution, of its result, and of the result of one step",
        "MAX_STEPS": "records in the journal of one execution; `continue_with` starts an empty journal",
        "MAX_SIGNAL_BYTES": "bytes of the payload of a signal or callback",
        "MAX_TEXT_BYTES": "bytes of free text such as a reason or a comment",
        "MAX_NAME_CHARACTERS": "characters of a kind, lane, key or other name; printable, no space at either end",
        "MAX_TAGS": "tags of one execution; keys look like `customer` or `team.owner`",
        "MAX_TAG_VALUE_BYTES": "bytes of the value of a tag",
        "MAX_CAPABILITIES": "capabilities that an execution requires or a worker offers",
        "MAX_CAPABILITIES_BYTES": "bytes of all these capabilities together",
        "MAX_PRIORITY": "the highest priority; values below 0 or above this limit are clamped",
        "MAX_BATCH": "items of one batch call such as `submit_many` of the engine, or names in a list",
        "MAX_GRAPH_MEMBERS": "members of a flow in one submit; more can be added later",
        "MAX_DECLARED_SIGNALS": "signals that a task declares",
        "MIN_LEASE_TTL": "the shortest lease",
        "MAX_LEASE_TTL": "the longest lease",
        "MAX_DURATION": "the longest duration of any other kind",
        "MAX_COUNT": "the highest number of retries, replays and similar counts",
        "MIN_TIME": "the earliest time that is accepted",
        "MAX_TIME": "the latest time that is accepted",
    },
    conditions: {
        "MAX_NESTING": "levels of a condition",
        "MAX_LEAVES": "leaves of a condition",
        "MAX_WAITPOINTS": "waitpoints of a condition, and therefore of one wait",
        "MAX_TOTAL_N": "the sum of n over all `Count`s of a condition",
    },
    schemas: {"MAX_SCHEMA_BYTES": "bytes of the schema of a payload; a larger one is not stored for a task"},
    prompts: {
        "MAX_SHOW_VALUES": "values in `show=` of an approval; the title is a name, and the details are free text",
        "MAX_SHOW_BYTES": "bytes of these values as JSON",
    },
    suspending: {"MAX_OPEN_WAITPOINTS": "open waitpoints of one execution"},
    continuing: {
        "MAX_REPORT_BYTES": "bytes of the report of a divergence",
        "MAX_EVENT_TRACEBACK": "characters of the traceback in the event of a failure; the end is kept",
    },
    postponing: {
        "MAX_DIVERGED_FOR": "how long an execution waits for a worker whose code matches its journal",
        "MAX_FAILED_RUNS": "runs of an attempt that fail inside the engine before the execution is held",
        "FAILED_RUN_PAUSE": "the pause after a run that failed inside the engine",
        "MAX_POSTPONEMENTS": "earlier postponements of an execution that are read, the newest first",
    },
    keyring: {
        "GRACE": "how long an old key stays valid after a rotation by default; open waitpoints keep it longer",
        "MAX_KID_CHARACTERS": "characters of the name of a key, 1 at least: letters, digits, `_` and `-`",
    },
    key_file: {"MAX_FILE_CHARACTERS": "characters of a key file"},
    tokens: {
        "MAX_TOKEN_CHARACTERS": "characters of a token",
        "MAX_SOURCE_BYTES": "bytes of an approver's name in a token",
    },
    membership: {"MAX_CANCELLED": "siblings that a winner cancels in its own transaction; a duty cancels the others"},
    subscribing: {"HOLD_TTL": "how long a process keeps the name of a subscriber without renewing it"},
    reading: {
        "MAX_BODY_BYTES": "bytes of a request to `app.asgi()`",
        "MAX_JSON_DEPTH": "nesting levels of the JSON in such a request",
    },
    pages: {"MAX_COMMENT_CHARACTERS": "characters of an approver's comment on the page of a link"},
    worker: {"MAX_SLOTS": "`concurrency=` of a worker: concurrent executions"},
    register: {"MAX_SLOTS": "slots that a worker registers"},
    parking: {"MAX_OPEN_WAITS": "concurrent waits of the branches of one execution; children are not counted"},
    failures: {
        "MAX_MESSAGE_CHARACTERS": "stored characters of the message of a failure",
        "MAX_TRACEBACK_CHARACTERS": "stored characters of the traceback of a failure",
    },
    connecting: {
        "MAX_STATEMENT_TIMEOUT": "the longest `statement_timeout=` of a store; 1 second is the shortest",
        "MAX_RETRY_FOR": "the longest `retry_for=` of a store; 0 turns repeats off",
        "MAX_POOL_SIZE": "connections of one process to PostgreSQL, `pool_size=`",
    },
    counting: {
        "MAX_EXACT_COUNT": "executions in one state that `count()` counts exactly; it estimates larger numbers",
        "MAX_EXACT_BACKLOG": "waiting executions of equal lane, kind and capabilities that `backlog()` counts exactly",
        "MAX_HELD_GROUPS": "groups of held executions that `held_work()` returns",
    },
}
# Public constants that are numbers or durations but do not limit users.
_NOT_LIMITS = {
    "app.app": {"DEFAULT_CONCURRENCY"},
    "app.workers": {"DEFAULT_CONCURRENCY"},
    "backends.postgres.pool": {"KEEP_STATEMENTS", "INITIAL_BACKOFF_S"},
    "engine.batcher": {"MAX_BATCH", "MAX_IN_FLIGHT", "SECOND_BATCH_MIN"},
    "cli.exit_codes": set(map(str, vars(exit_codes))),
    "core.flows.records": {"DEPENDENCIES"},
    "core.validation": {"MAX_INTEGER"},
    "core.waits.records": {"SKIPPED"},
    "core.waits.snapshot": {"MAX_SIGNALS"},
    "core.events.subscribers": {"MAX_SCANNED_EVENTS"},
    "core.tokens.token": {"NONCE_BYTES"},
    "core.retention": {"MAX_PURGE_ROWS", "MAX_TRIMMED_EVENTS", "POSTPONE_FOR"},
    "ops.flows.replay": {"BATCH"},
    "reconcilers.duty": {"BATCH", "REMOVAL_BATCH"},
    "reconcilers.vacuum": {"VACUUM_CLAIMS"},
    "backends.postgres.vacuum": {"MAX_VACUUM_S"},
    "runtime.calls.approval": {"MAX_CALLBACK_CODECS"},
    "runtime.durable_call": {"MAX_RECORDS", "MAX_UNWINDS", "WARN_RECORDS"},
    "runtime.journal": {"KEYED"},
    "runtime.suspension": {"MAX_EMPTY_WAKEUPS"},
    "runtime.sync_bridge": {"MAX_SWALLOWED"},
    "runtime.threads": {"MIN_BRANCH_THREADS"},
}
_POLICY = {
    "max_retries": "`retries=`: tries after the first try, of the body and of each step",
    "backoff": "`backoff=`: see below",
    "retryable_categories": "categories that are retried; an empty list means all",
    "attempt_timeout": "`timeout=`: how long one attempt may run, excluding waits",
    "on_attempt_timeout": "the effect of an attempt timeout",
    "deadline": "`deadline=`: how long the whole execution may take, including waits",
    "lease_ttl": "`lease=` of the worker: how long a worker may go without renewal before another worker takes over",
    "on_lease_loss": "the effect of a lost lease: the execution is queued again, or kept for a hand-off",
    "max_reclaims": "lost leases before the execution fails",
    "max_replays": "replays of one execution",
    "max_signals": "signals that one execution accepts",
    "dedup_window": "how long the key of a submit is remembered",
    "retention": "`retention=`: how long an execution is kept after it has ended",
}
_BACKOFF = {
    "kind": "how the delay grows",
    "initial": "the first delay",
    "multiplier": "the factor by which the delay grows with each retry",
    "max_delay": "the longest delay; `initial`, if that is longer",
    "jitter": "whether the delay is a random value between 0 and its length",
}


def page() -> str:
    """Return the text of the page."""
    bounds = [
        f"| {what} | {_shown(getattr(module, name), name)} |"
        for module, of in _LIMITS.items()
        for name, what in of.items()
    ]
    return (
        "\n\n".join(
            [
                _HEAD,
                "\n".join(["| meaning | limit |", "|---|---|", *bounds]),
                "## Defaults of an execution",
                "`@app.task(…)` accepts these keywords, `.options(…)` some of them. `Policy` has all fields.",
                _defaults(DEFAULT_POLICY, _POLICY),
                "### Backoff",
                "`Backoff(…)`. The first delay is `initial`. It grows `multiplier` times per retry, up to `max_delay`.",
                _defaults(DEFAULT_BACKOFF, _BACKOFF),
            ]
        )
        + "\n"
    )


def missing() -> set[str]:
    """Return the public constants that are listed neither in `_LIMITS` nor in `_NOT_LIMITS`."""
    known = {module.__name__: set(named) for module, named in _LIMITS.items()}
    return {
        f"{module.__name__}.{name}"
        for module in _modules()
        for name in _own_constants(module) - known.get(module.__name__, set())
        if _is_bound(getattr(module, name)) and name not in _NOT_LIMITS.get(_short(module), set())
    }


def _modules() -> Iterator[ModuleType]:
    """Yield every module of the package except `__main__`, which would run the command."""
    for found in pkgutil.walk_packages(flowfabric.__path__, "flowfabric."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def _short(module: ModuleType) -> str:
    return module.__name__.removeprefix("flowfabric.")


def _own_constants(module: ModuleType) -> set[str]:
    """Return the public constants that the module assigns itself, without imported constants."""
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
    return "\n".join(["| field | meaning | default |", "|---|---|---|", *rows])


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

<!-- Written by tools/generate_reference.py from the constants and defaults of the sources. Do not edit. -->

FlowFabric checks all limits before it writes anything, and the error names the limit. Most errors are `InvalidRequest`
with the code `payload_too_large`, `out_of_range` or `invalid_name`; see [errors by code](errors.md). Store larger data
elsewhere and pass its address."""
