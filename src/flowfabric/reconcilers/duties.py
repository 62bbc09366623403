"""The list of all background duties. The name of a duty is also the name of the query that finds its due rows."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from flowfabric.core.executions.attempts import decide_attempt_timeout
from flowfabric.core.executions.decision import Decision
from flowfabric.core.executions.leases import decide_lease_check
from flowfabric.core.executions.operator import decide_deadline, decide_due_cancel, decide_ready
from flowfabric.core.executions.records import Execution
from flowfabric.core.retention import EventRetention
from flowfabric.ops.events.trim import expire_subscribers, old_events_apart, trim_events, trim_events_apart
from flowfabric.ops.executions.purge import drop_keys, find_keys_to_drop, purge, purge_flows
from flowfabric.ops.flows.cancel import sweep
from flowfabric.ops.keys import collect_keys, expired_kids
from flowfabric.ops.reconcile import reconcile
from flowfabric.ops.waits.resume import expire_waitpoints, fire_timers, time_out_suspensions
from flowfabric.ops.workers import lapsed_workers, sweep_workers
from flowfabric.reconcilers.duty import REMOVAL_BATCH, DecisionDuty, Duties, Duty, RowDuty, Tick, Tickable
from flowfabric.store.ports import Store

_log = logging.getLogger("flowfabric.reconcilers")


def make_duties(retention: EventRetention) -> Sequence[Tickable]:
    """Return all duties in the order in which they run."""
    return (
        _execution_duty("lease_expiry", decide_lease_check),
        _execution_duty("delayed_work", decide_ready),
        _execution_duty(
            "attempt_timeout", lambda execution, now: decide_attempt_timeout(execution, random.random(), now)
        ),
        _execution_duty("deadline", decide_deadline),
        DecisionDuty("suspension_timeout", time_out_suspensions),
        Duty("timers", fire_timers),
        Duty("waitpoint_expiry", expire_waitpoints),
        RowDuty("key_collection", expired_kids, collect_keys),
        Duty("flow_cancellation", sweep),
        _execution_duty("cancel_grace", decide_due_cancel),
        Duties(
            Duty("retention", partial(purge, keep_events=retention.retention), REMOVAL_BATCH),
            RowDuty("retention", find_keys_to_drop, drop_keys, REMOVAL_BATCH),
        ),
        Duty("flow_retention", partial(purge_flows, keep_events=retention.retention)),
        Duties(
            _SubscriberExpiry(retention),
            Duty("event_trimming", trim_events, REMOVAL_BATCH),
            RowDuty("event_trimming", partial(old_events_apart, retention=retention.retention), trim_events_apart),
        ),
        RowDuty("worker_liveness", lapsed_workers, sweep_workers),
    )


def make_lease_terms_duty() -> Duty:
    """Return the duty that shortens leases with more time left than their term.

    Such leases exist only after the store's clock went back, so this duty has no due time.
    """
    return _execution_duty("lease_terms", decide_lease_check)


def _execution_duty(name: str, decide: Callable[[Execution, datetime], Decision[Any] | None]) -> DecisionDuty:
    """Return a duty that decides about each due execution without its waits."""
    return DecisionDuty(name, partial(reconcile, decide=decide))


class _SubscriberExpiry:
    """Expires named subscribers that have stopped reading."""

    name = "event_trimming"

    def __init__(self, retention: EventRetention) -> None:
        self._silence = retention.subscriber_expiry

    async def tick(self, store: Store) -> Tick:
        for namespace, name in await store.run(partial(expire_subscribers, silence=self._silence)):
            _log.warning("Subscriber %r of namespace %r stopped reading and has expired", name, namespace)
        return Tick(self.name, 0, 0, has_more=False)
