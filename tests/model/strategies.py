"""Strategies for the arguments and calls of moves. They draw from few values, so that drawn values are often equal."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from hypothesis import strategies as st

from flowfabric.engine import Backoff, BackoffKind, FailureClass, OnAttemptTimeout, OnLeaseLoss, Policy, Step
from flowfabric.engine import StepStatus as Status
from tests.model.checks import NAMESPACES, Target, other

Method = TypeVar("Method", bound=Callable[..., None])
Arguments = dict[str, Any]
Call = tuple[str, Arguments]

S = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)
WORKERS = ("ant", "bee")
LANES = ("main", "side")
RED = NAMESPACES[0]

rarely = st.sampled_from([False] * 11 + [True])
recent = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 4])
any_index = st.sampled_from(range(12))
targets = st.builds(Target, which=recent, any_state=st.sampled_from([False, False, False, True]), foreign=rarely)
fence_changes = st.sampled_from([""] * 6 + ["older", "newer", "forged"])
mostly_red = st.sampled_from([RED, RED, RED, other(RED)])
workers = st.sampled_from(WORKERS)
lanes = st.sampled_from(LANES)
reasons = st.sampled_from(["", "why not"])
lease_ttls = st.sampled_from([None, None, 3 * S])
capability_sets = st.sampled_from([("gpu",), ("gpu",), ()])
backoffs = st.sampled_from([
    Backoff(kind=BackoffKind.FIXED, initial=5 * S, jitter=False),
    Backoff(kind=BackoffKind.FIXED, initial=3 * S, max_delay=3 * S, jitter=False),
    Backoff(kind=BackoffKind.EXPONENTIAL, initial=2 * S, max_delay=6 * S, jitter=False),
])  # fmt: skip
policies = st.builds(
    Policy,
    max_retries=st.sampled_from([2, 1, 0]),
    backoff=backoffs,
    retryable_categories=st.sampled_from([(), (), ("flaky",)]),
    attempt_timeout=st.sampled_from([None, None, 7 * S]),
    on_attempt_timeout=st.sampled_from(OnAttemptTimeout),
    deadline=st.sampled_from([None, None, None, 40 * S]),
    lease_ttl=st.just(10 * S),
    on_lease_loss=st.sampled_from(OnLeaseLoss),
    max_reclaims=st.sampled_from([0, 1, 2, 100]),
    max_replays=st.sampled_from([2, 1, 2, 0]),
    dedup_window=st.sampled_from([86400 * S, 25 * S, 0 * S]),
    retention=st.sampled_from([5 * 86400 * S, 30 * S]),
    max_signals=st.sampled_from([10_000, 10_000, 10_000, 3]),
)
bodies = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["job", "other"]),
        "payload": st.sampled_from([b"a", b"b"]),
        "lane": lanes,
        "requires": st.sampled_from([(), (), ("gpu",)]),
        "policy": policies,
        "tags": st.sampled_from([{}, {"a.b": "c"}]),
        "signals": st.sampled_from([(), ("s",)]),
    }
)
steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(["one", "two"]),
        st.sampled_from([b"1", b"2"]),
        status=st.sampled_from([Status.OK, Status.OK, Status.OPEN, Status.FAILED]),
    ),
    min_size=1,
    max_size=2,
    unique_by=lambda step: step.name,
)
optional_steps: st.SearchStrategy[list[Step]] = st.one_of(st.just([]), st.just([]), steps)


def call(path: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Call]:
    """Return a strategy for a call with drawn arguments."""
    return st.fixed_dictionaries(arguments).map(lambda drawn: (path, drawn))


def move(weight: int = 1, /, **arguments: st.SearchStrategy[Any]) -> Callable[[Method], Method]:
    """Mark a method as a move with its weight and argument strategies."""

    def mark(method: Method) -> Method:
        vars(method)["drawn"] = (weight, arguments)
        return method

    return mark


keep_calls = st.one_of(
    call("leases.renew"),
    call("leases.progress", percent=st.sampled_from([None, 0, 100]), message=st.sampled_from([None, "", "half"])),
    call("leases.checkpoint", steps=steps),
    call("leases.checkpoint", steps=steps),
)
complete_calls = call("leases.complete", result=st.sampled_from([b"x", b"y"]), steps=optional_steps)
fail_calls = call(
    "leases.fail",
    message=st.just("broken"),
    steps=optional_steps,
    category=st.sampled_from([None, None, "flaky", "other"]),
    failure_class=st.sampled_from([FailureClass.TRANSIENT] * 4 + list(FailureClass)),
)
leave_calls = st.one_of(
    call("leases.delay", after=st.sampled_from([0 * S, 6 * S]), steps=optional_steps),
    call("leases.release"),
    call("leases.cancel", reason=reasons, steps=optional_steps),
)
operator_calls = st.one_of(
    call("operator.cancel", reason=reasons),
    call("operator.hold", reason=reasons),
    call("operator.hold", reason=reasons),
    call("operator.unhold", reason=reasons),
    call("operator.change_priority", priority=st.sampled_from([-1, 0, 7, 10_000]), reason=reasons),
    call("executions.set_tags", tags=st.sampled_from([{}, {"a.b": "x", "c.d": "y"}, {"a.b": None}])),
)
admin_calls = st.one_of(
    call("lanes.pause", lane=lanes, reason=reasons),
    call("lanes.drain", lane=lanes, reason=reasons),
    call("lanes.resume", lane=lanes, reason=reasons),
    call("lanes.resume", lane=lanes, reason=reasons),
    call("leases.held", instance=workers),
    call(
        "operator.unhold_all",
        kind=st.sampled_from([None, "job"]),
        hold_reason=st.sampled_from([None, "", "why not"]),
        reason=reasons,
    ),
)
