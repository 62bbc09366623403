"""Whether a failed attempt is tried again, and when."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum

from flowfabric.core.policy import Backoff, BackoffKind, Policy, span


class FailureClass(StrEnum):
    """What kind of failure it was; permanent and cancelled ones are never retried."""

    TRANSIENT = "transient"
    PERMANENT = "permanent"
    INFRA_CRASH = "infra_crash"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"


_NEVER_RETRIED = frozenset({FailureClass.PERMANENT, FailureClass.CANCELLED})


def may_retry(policy: Policy, retries_taken: int, failure_class: FailureClass, category: str) -> bool:
    """True when the policy allows one more retry of such a failure."""
    if failure_class in _NEVER_RETRIED or retries_taken >= policy.max_retries:
        return False
    return not policy.retryable_categories or category in policy.retryable_categories


def backoff_delay(backoff: Backoff, retries_taken: int, chance: float) -> timedelta:
    """The delay before the next retry; `chance` in [0, 1) is the draw of the full jitter."""
    delay = _unjittered(backoff, retries_taken)
    return delay * chance if backoff.jitter else delay


def _unjittered(backoff: Backoff, retries_taken: int) -> timedelta:
    initial, most = span(backoff.initial), span(backoff.most)
    if backoff.kind is BackoffKind.FIXED or not initial:
        return min(initial, most)
    try:
        grown = initial.total_seconds() * backoff.multiplier**retries_taken
    except OverflowError:
        return most
    return timedelta(seconds=min(grown, most.total_seconds()))
