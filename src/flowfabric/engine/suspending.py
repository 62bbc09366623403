"""Checking a wish to suspend before anything is opened for it."""

from __future__ import annotations

from typing import Any

from flowfabric.core import limits, requests
from flowfabric.core.bindings import Bound, bindings
from flowfabric.core.conditions import AllOf, Condition, OperatorOnly, Single, validate
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.requests import choice
from flowfabric.core.suspending import Suspend
from flowfabric.core.waits import OnTimeout, Rest, SuspensionReason
from flowfabric.engine.context import Context
from flowfabric.engine.waitpoints import draw_waitpoint


def suspend_request(
    context: Context, fence: object, waitpoints: object, condition: object, timeout: object, timeout_at: object,
    **settings: Any,
) -> Suspend:  # fmt: skip
    """The request, checked: its bindings, its condition, its times."""
    bound = bindings(waitpoints)
    if timeout is not None and timeout_at is not None:
        raise InvalidRequest("invalid_request", "give timeout or timeout_at, not both")
    wanted = _default(bound) if condition is None else _condition(condition)
    has_timeout = timeout is not None or timeout_at is not None
    validate(wanted, [item.key for item in bound], has_timeout=has_timeout)
    key = settings["key"]
    return Suspend(
        fence=requests.fence(fence), bindings=bound, condition=wanted,
        reason=choice(SuspensionReason, settings["reason"], "reason"),
        timeout=None if timeout is None else limits.duration(timeout, "timeout"),
        timeout_at=None if timeout_at is None else limits.moment(timeout_at, "timeout_at"),
        on_timeout=choice(OnTimeout, settings["on_timeout"], "on_timeout"),
        resume_delay=limits.duration(settings["resume_delay"], "resume_delay"),
        rest=choice(Rest, settings["rest"], "rest"), key=None if key is None else limits.name(key, "key"),
        suspension_id=context.ids.mint(), drawn=tuple(draw_waitpoint(context) for _ in bound),
        steps=requests.steps(settings["steps"]),
    )  # fmt: skip


def _default(bound: tuple[Bound, ...]) -> Condition:
    """Any signal at every waitpoint; without a waitpoint, only an operator ends the wait."""
    members = [Single(item.key) for item in bound]
    if not members:
        return OperatorOnly()
    return members[0] if len(members) == 1 else AllOf(members)


def _condition(value: object) -> Condition:
    if isinstance(value, Condition):
        return value
    message = f"condition must be Single, AllOf, AnyOf, Count, OperatorOnly or TimeoutOnly, not {type(value).__name__}"
    raise InvalidRequest("invalid_type", message, field="condition")
