"""What the moves of waits are made of: bindings, conditions that fit them, and wishes to suspend."""

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
    Fresh,
    OnTimeout,
    OperatorOnly,
    Pending,
    Rest,
    Single,
    Standing,
    SuspensionReason,
    TimeoutOnly,
    Timer,
)  # fmt: skip
from tests.model.drawing import Arguments, Call, S, call, riding
from tests.model.records import Execution


@dataclass(frozen=True)
class Soon:
    """A timer that far from the moment in which it is bound."""

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
    "a": st.sampled_from([Fresh("a"), Fresh("a"), Fresh("a", approver="alice"), Pending("a")]),
    "b": st.sampled_from([Fresh("b"), Fresh("b", approver="bob"), Fresh("b", approver="alice"), Pending("b")]),
    "s": st.sampled_from([Standing("s"), Standing("s"), Standing("s"), Standing("s"), Fresh("s")]),
    "t": st.sampled_from([Soon("t", 5 * S), Soon("t", 5 * S), Soon("t", 11 * S), Soon("t", 0 * S), Fresh("t")]),
}
key_sets = st.sampled_from(["a", "a", "ab", "ab", "as", "s", "at", "t", "abs", "abt", "ast"])


@st.composite
def plans(draw: st.DrawFn) -> Arguments:
    """Waitpoints and a condition that names each of them."""
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
    most = len(keys) if distinct == "waitpoints" else 3
    return Count(draw(st.integers(min(2, most), most)), distinct, keys, draw(matchers))


_SHAPES = ("all", "all", "any", "any", "some", "both", "either", "count", "count", "never")
settings = st.fixed_dictionaries({
    "reason": st.sampled_from([SuspensionReason.WAITING_FOR_SIGNAL, *list(SuspensionReason)[:2],
                               SuspensionReason.MANUAL_PAUSE]),
    "timeout": st.sampled_from([None, None, None, 7 * S, 7 * S, 7 * S, 0 * S]),
    "on_timeout": st.sampled_from(OnTimeout), "resume_delay": delays, "rest": st.sampled_from([Rest.CLOSE, Rest.KEEP]),
    "key": st.sampled_from([None, None, "w1", "w1", "w2"]), "steps": riding,
})  # fmt: skip
wishes = st.tuples(plans(), settings).map(lambda parts: parts[0] | parts[1])
suspending: st.SearchStrategy[Call] = wishes.map(lambda wish: ("leases.suspend", wish))
creating = call(
    "waitpoints.create", key=st.sampled_from(["a", "a", "b", "s", "t"]), expires=st.sampled_from([None, None, 6 * S]),
    approver=st.sampled_from([None, None, "alice", "bob"]), token_ends_at=st.sampled_from([None, None, None, 4 * S]),
)  # fmt: skip


def timed(called: Call, now: datetime, execution: Execution | None = None) -> Call:
    """The same call with the moments that it means when it is made now; given its execution, what is to be bound there
    and is not open is bound fresh."""
    path, arguments = called
    if "waitpoints" in arguments:
        bound = [_settled(item, now, execution) for item in arguments["waitpoints"]]
        return path, arguments | {"waitpoints": bound}
    if isinstance(end := arguments.get("token_ends_at"), timedelta):
        return path, arguments | {"token_ends_at": now + end}
    return called


def _settled(item: Any, now: datetime, execution: Execution | None) -> Any:
    if isinstance(item, Soon):
        return Timer(item.key, now + item.after)
    given = {slot.key: slot.kind for slot in execution.slots if slot.is_open} if execution else {}
    if execution and isinstance(item, Pending | Standing) and item.key not in given:
        return Fresh(item.key)
    return item


def secret_of(kid: str) -> str:
    """The secret that a key has here."""
    return hashlib.sha256(kid.encode()).hexdigest()
