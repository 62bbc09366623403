"""Strategies for waits: bindings, conditions that fit them, and the options of a suspend."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from flowfabric.engine import (
    AllOf,
    AnyOf,
    Condition,
    Count,
    NewWaitpoint,
    OnTimeout,
    OperatorOnly,
    PendingWaitpoint,
    Single,
    StandingWaitpoint,
    SuspensionReason,
    TimeoutOnly,
    Timer,
    UnusedWaitpoints,
)
from tests.model.records import Execution
from tests.model.strategies import Arguments, Call, S, call, optional_steps


@dataclass(frozen=True)
class RelativeTimer:
    """A timer that is due a fixed time after it is bound."""

    key: str
    after: timedelta


names = st.sampled_from(["go", "go", "no"])
matchers = st.sampled_from([None, None, "go"])
senders = st.sampled_from(["ann", "ann", "ben"])
signal_ids = st.sampled_from([None, *(UUID(int=number) for number in range(201, 204))])
signal_keys = st.sampled_from([None, "once", "twice"])
delays = st.sampled_from([0 * S, 0 * S, 4 * S])
graces = st.sampled_from([None, None, 0 * S, 5 * S])
bindings: dict[str, st.SearchStrategy[Any]] = {
    "a": st.sampled_from(
        [NewWaitpoint("a"), NewWaitpoint("a"), NewWaitpoint("a", approver="alice"), PendingWaitpoint("a")]
    ),
    "b": st.sampled_from(
        [
            NewWaitpoint("b"),
            NewWaitpoint("b", approver="bob"),
            NewWaitpoint("b", approver="alice"),
            PendingWaitpoint("b"),
        ]
    ),
    "s": st.sampled_from(
        [
            StandingWaitpoint("s"),
            StandingWaitpoint("s"),
            StandingWaitpoint("s"),
            StandingWaitpoint("s"),
            NewWaitpoint("s"),
        ]
    ),
    "t": st.sampled_from(
        [
            RelativeTimer("t", 5 * S),
            RelativeTimer("t", 5 * S),
            RelativeTimer("t", 11 * S),
            RelativeTimer("t", 0 * S),
            NewWaitpoint("t"),
        ]
    ),
}
key_sets = st.sampled_from(["a", "a", "ab", "ab", "as", "s", "at", "t", "abs", "abt", "ast"])


@st.composite
def plans(draw: st.DrawFn) -> Arguments:
    """Draw waitpoints and a condition that names each of them."""
    keys = list(draw(key_sets))
    bound = [draw(bindings[key]) for key in keys]
    return {"waitpoints": bound, "condition": _condition(draw, keys, draw(st.sampled_from(_SHAPES)))}


def _condition(draw: st.DrawFn, keys: Sequence[str], shape: str) -> Condition:
    singles = [Single(key, draw(matchers)) for key in keys]
    match shape:
        case "all":
            return singles[0] if len(singles) == 1 else AllOf(singles)
        case "any":
            return AnyOf(singles)
        case "some":
            return AnyOf([AllOf(singles[:-1]), singles[-1]]) if len(singles) > 1 else AllOf([AnyOf(singles)])
        case "both":
            return AllOf([_count(draw, keys), AnyOf(singles)])
        case "either":
            return AnyOf([_count(draw, keys[:1]), *singles[1:]])
        case "never":
            return OperatorOnly() if draw(st.booleans()) else TimeoutOnly()
    return _count(draw, keys)


def _count(draw: st.DrawFn, keys: Sequence[str]) -> Count:
    distinct = draw(st.sampled_from(["sources", "sources", "signals", "waitpoints"]))
    maximum = len(keys) if distinct == "waitpoints" else 3
    return Count(draw(st.integers(min(2, maximum), maximum)), distinct, keys, draw(matchers))


_SHAPES = ("all", "all", "any", "any", "some", "both", "either", "count", "count", "never")
settings = st.fixed_dictionaries(
    {
        "reason": st.sampled_from(
            [SuspensionReason.WAITING_FOR_SIGNAL, *list(SuspensionReason)[:2], SuspensionReason.MANUAL_PAUSE]
        ),
        "timeout": st.sampled_from([None, None, None, 7 * S, 7 * S, 7 * S, 0 * S]),
        "on_timeout": st.sampled_from(OnTimeout),
        "resume_delay": delays,
        "unused_waitpoints": st.sampled_from([UnusedWaitpoints.CLOSE, UnusedWaitpoints.KEEP]),
        "key": st.sampled_from([None, None, "w1", "w1", "w2"]),
        "steps": optional_steps,
    }
)
suspend_options = st.tuples(plans(), settings).map(lambda parts: parts[0] | parts[1])
suspend_calls: st.SearchStrategy[Call] = suspend_options.map(lambda options: ("leases.suspend", options))
create_calls = call(
    "waitpoints.create",
    key=st.sampled_from(["a", "a", "b", "s", "t"]),
    expires=st.sampled_from([None, None, 6 * S]),
    approver=st.sampled_from([None, None, "alice", "bob"]),
    token_ends_at=st.sampled_from([None, None, None, 4 * S]),
)


def resolve_times(operation: Call, now: datetime, execution: Execution | None = None) -> Call:
    """Replace relative times by absolute times.

    If a binding names a waitpoint that is not open, bind a new waitpoint instead.
    """
    path, arguments = operation
    if "waitpoints" in arguments:
        bound = [_resolve_binding(binding, now, execution) for binding in arguments["waitpoints"]]
        return path, arguments | {"waitpoints": bound}
    if isinstance(end := arguments.get("token_ends_at"), timedelta):
        return path, arguments | {"token_ends_at": now + end}
    return operation


def _resolve_binding(binding: Any, now: datetime, execution: Execution | None) -> Any:
    if isinstance(binding, RelativeTimer):
        return Timer(binding.key, now + binding.after)
    open_kinds = {slot.key: slot.kind for slot in execution.slots if slot.is_open} if execution else {}
    if execution and isinstance(binding, PendingWaitpoint | StandingWaitpoint) and binding.key not in open_kinds:
        return NewWaitpoint(binding.key)
    return binding


def make_secret(kid: str) -> str:
    """Return the secret of a key."""
    return hashlib.sha256(kid.encode()).hexdigest()
