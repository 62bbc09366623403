"""Ends attempts that ran past their time: a retryable failure, or the end of the execution if the policy says so."""

from __future__ import annotations

from collections.abc import Callable

from flowfabric.core.attempts import decide_attempt_timeout
from flowfabric.reconcilers.duty import Duty, deciding


def attempt_timeout(chance: Callable[[], float]) -> Duty:
    """The duty over `attempt_timeout_at`; `chance` draws the jitter of the retries."""
    return Duty("attempt_timeout", deciding(lambda execution, now: decide_attempt_timeout(execution, chance(), now)))
