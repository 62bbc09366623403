"""Tests for the outcome of a repeated request and for the contents of a lease."""

from __future__ import annotations

from datetime import timedelta

import pytest

from flowfabric.core.executions.outcomes import lease_of, repeat_outcome
from flowfabric.core.executions.records import AttemptOrigin
from flowfabric.engine import Delayed, Ended, Fence, Released, RetryScheduled, State
from tests.unit.builders import EPOCH, ID, LEASE_ID, MINUTE, T0, WORKER, make_former_lease, make_leased, make_live_lease


@pytest.mark.parametrize(
    ("end", "until", "outcome"),
    [
        ("complete", None, Ended(State.COMPLETED)),
        ("fail", None, Ended(State.FAILED)),
        ("cancel", None, Ended(State.CANCELLED)),
        ("retry", T0, RetryScheduled(T0)),
        ("delay", T0, Delayed(T0)),
        ("release", T0, Delayed(T0)),
        ("release", None, Released()),
    ],
)
def test_repeated_request_gets_the_outcome_of_the_former_lease(end: str, until: None, outcome: object) -> None:
    assert repeat_outcome(make_former_lease(end=end, until=until, digest="d")) == outcome


def test_lease_has_the_fields_of_its_execution() -> None:
    execution = make_leased(
        priority=4,
        tags={"a.b": "c"},
        deadline_at=T0 + MINUTE,
        attempt_timeout_at=T0 + 2 * MINUTE,
        attempt_index=3,
        generation=1,
        is_standalone=False,
    )
    lease = lease_of(execution)
    assert lease.fence == execution.fence == Fence(ID, EPOCH, LEASE_ID)
    assert (lease.execution_id, lease.epoch) == (ID, EPOCH)
    assert (lease.namespace, lease.lane, lease.kind) == ("default", "default", "job")
    assert (lease.payload, lease.encoding, lease.priority, lease.tags) == (b"in", "json", 4, {"a.b": "c"})
    assert (lease.attempt_index, lease.generation, lease.is_standalone) == (3, 1, False)
    assert (lease.deadline_at, lease.attempt_timeout_at) == (T0 + MINUTE, T0 + 2 * MINUTE)
    assert (lease.worker, lease.ttl) == (WORKER, timedelta(seconds=30))
    assert lease.expires_at == lease.acquired_at + lease.ttl


@pytest.mark.parametrize("origin", AttemptOrigin)
def test_lease_has_its_origin(origin: AttemptOrigin) -> None:
    assert lease_of(make_leased(attempt_origin=origin)).origin == origin.value
    resumed = make_leased(attempt_origin=origin, lease=make_live_lease(resumed=True))
    assert lease_of(resumed).origin == "resumed"
