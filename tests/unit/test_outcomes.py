"""A lost reply is answered as the first time, and a lease shows its worker everything it needs."""

from __future__ import annotations

from datetime import timedelta

import pytest

from flowfabric.core.outcomes import answer_again, lease_of
from flowfabric.core.records import AttemptOrigin
from flowfabric.engine import Delayed, Ended, Fence, Released, RetryScheduled, State
from tests.unit.builders import EPOCH, ID, LEASE_ID, MINUTE, T0, WORKER, former_lease, leased, live_lease


@pytest.mark.parametrize(
    ("end", "until", "answer"),
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
def test_the_former_lease_answers_what_was_answered(end: str, until: None, answer: object) -> None:
    assert answer_again(former_lease(end=end, until=until, digest="d")) == answer


def test_a_lease_shows_the_work_and_its_times() -> None:
    execution = leased(
        priority=4, tags={"a.b": "c"}, deadline_at=T0 + MINUTE, attempt_timeout_at=T0 + 2 * MINUTE, attempt_index=3,
        generation=1, plain=False,
    )  # fmt: skip
    lease = lease_of(execution)
    assert lease.fence == execution.fence == Fence(ID, EPOCH, LEASE_ID)
    assert (lease.execution_id, lease.epoch) == (ID, EPOCH)
    assert (lease.namespace, lease.lane, lease.kind) == ("default", "default", "job")
    assert (lease.payload, lease.encoding, lease.priority, lease.tags) == (b"in", "json", 4, {"a.b": "c"})
    assert (lease.attempt_index, lease.generation, lease.plain) == (3, 1, False)
    assert (lease.deadline_at, lease.attempt_timeout_at) == (T0 + MINUTE, T0 + 2 * MINUTE)
    assert (lease.worker, lease.ttl) == (WORKER, timedelta(seconds=30))
    assert lease.expires_at == lease.acquired_at + lease.ttl


@pytest.mark.parametrize("origin", AttemptOrigin)
def test_a_lease_says_how_it_came_about(origin: AttemptOrigin) -> None:
    assert lease_of(leased(attempt_origin=origin)).origin == origin.value
    resumed = leased(attempt_origin=origin, lease=live_lease(resumed=True))
    assert lease_of(resumed).origin == "resumed"
