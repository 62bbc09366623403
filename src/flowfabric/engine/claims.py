"""How a worker gets work: claims, and `WorkWatch`, with which it waits for work without constant polling."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from flowfabric.core import validation
from flowfabric.core.executions.outcomes import Lease
from flowfabric.core.executions.requests import Claim
from flowfabric.engine.context import Context
from flowfabric.notify.hub import NotifyHub
from flowfabric.notify.waiters import Waiter
from flowfabric.ops.events.eras import renew_era
from flowfabric.ops.leases.claim import ClaimAttempt, claim

_CLAIM_RETRIES = 3
_ONE_DAY_S = 86_400.0
_HINT_S = 0.1


async def claim_leases(context: Context, request: Claim) -> list[Lease]:
    """Return the leases of a claim. If other claims have locked all candidates, try again immediately, three times."""
    if request.lease_ttl is not None:
        context.wakeups.note_lease_ttl(request.lease_ttl)
    if context.claim_namespaces is not None:
        request = replace(request, namespaces=context.claim_namespaces.in_turn())
    requested_at = time.monotonic()
    claimed = await context.call(claim, ClaimAttempt(request, context.lease_bits(request.limit), False))
    for _ in range(_CLAIM_RETRIES):
        if claimed.leases or not claimed.is_incomplete:
            break
        claimed = await context.call(claim, ClaimAttempt(request, context.lease_bits(request.limit), True))
    if claimed.is_incomplete:
        # The rows that other transactions had locked or changed may be free without a notification, so the workers must
        # claim again soon.
        context.wakeups.waiters.notify_workers_soon()
    leases = list(claimed.leases)
    if leases and not claimed.is_current:
        era = await context.call(renew_era, None)
        leases = [replace(lease, era=era) for lease in leases]
    context.note_leases(leases)
    context.vacuum.claims_left -= len(leases)
    if context.vacuum.claims_left <= 0:
        context.vacuum.request()
    if context.claim_namespaces is not None:
        context.claim_namespaces.note_claimed(leases)
    note_times(context, leases, requested_at)
    return leases


def note_times(context: Context, leases: Sequence[Lease], requested_at: float) -> None:
    """Learn the store's time from new leases, and announce when they are due."""
    if leases:
        # The claim used the store's clock after `requested_at`, so its time shows whether that clock has jumped.
        context.wakeups.learn_time(leases[0].acquired_at, requested_at)
        context.wakeups.note_lease_ttl(min(lease.ttl for lease in leases))
    due = [time for lease in leases for time in (lease.expires_at, lease.attempt_timeout_at) if time is not None]
    if due:
        context.due_at(min(due))


class WorkWatch:
    """Notifies an idle worker when to claim again.

    Enter it before the first claim. Otherwise the worker misses work that is submitted between a claim and the wait
    after it.
    """

    def __init__(self, wakeups: NotifyHub, waiter: Waiter) -> None:
        self._wakeups = wakeups
        self._waiter = waiter

    def __enter__(self) -> Self:
        self._waiter.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._waiter.__exit__(kind, error, traceback)

    async def wait(self, timeout: validation.Duration | None = None) -> bool:  # noqa: ASYNC109 - how long a worker idles
        """Wait until the worker should claim again. Return True if it was notified of possible work.

        Return False after `timeout`. If no reconcilers run in this process, return False earlier, after one polling
        interval. Reconcilers that run in this process look for work for all its workers with one statement.
        """
        limit_s = _ONE_DAY_S if timeout is None else validation.duration(timeout, "timeout").total_seconds()
        return await self._waiter.wait(
            limit_s if self._wakeups.active_reconcilers else min(limit_s, self._wakeups.poll_interval_s)
        )

    async def yield_to_others(self) -> None:
        """Wait as long as the workers of other processes need to find the work of which this one was notified."""
        await asyncio.sleep(_HINT_S if self._wakeups.is_alive else self._wakeups.poll_interval_s)
