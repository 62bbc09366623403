"""The ledger of a worker's leases, by a clock that the test moves."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from flowfabric.engine import Fence, Lease, WorkerId
from flowfabric.worker.ledger import Ledger

TERM_S = 30.0


class Clock:
    """Local time in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(clock: Clock) -> Ledger:
    return Ledger(clock)


def test_a_lease_is_due_after_a_third_of_its_term_and_again_after_a_third_more(ledger: Ledger, clock: Clock) -> None:
    lease = _started(ledger, clock)
    clock.now += 9.9
    assert ledger.due() == []
    clock.now += 0.1
    assert ledger.due() == [lease.fence]
    assert ledger.extend(_id(lease), clock.now)
    assert ledger.due() == []
    clock.now += 10
    assert ledger.due() == [lease.fence]


def test_the_most_urgent_comes_first(ledger: Ledger, clock: Clock) -> None:
    first = _started(ledger, clock)
    clock.now += 5
    second = _started(ledger, clock)
    ledger.extend(_id(first), clock.now)
    clock.now += 10
    third = _started(ledger, clock, asked_at=clock.now - 20)
    assert ledger.due()[0] == third.fence
    assert set(ledger.due()) == {first.fence, second.fence, third.fence}


def test_a_lease_that_was_not_renewed_for_its_whole_term_is_lost_once(ledger: Ledger, clock: Clock) -> None:
    lease = _started(ledger, clock)
    clock.now += TERM_S - 0.1
    assert ledger.take_lost() == []
    clock.now += 0.1
    assert ledger.take_lost() == [lease.fence]
    assert ledger.take_lost() == []
    assert not ledger.extend(_id(lease), clock.now)


def test_the_term_counts_from_before_the_store_was_asked(ledger: Ledger, clock: Clock) -> None:
    lease = _started(ledger, clock, asked_at=clock.now - 4)
    clock.now += TERM_S - 4
    assert ledger.take_lost() == [lease.fence]


def test_what_is_not_started_within_a_third_of_its_term_is_idle(ledger: Ledger, clock: Clock) -> None:
    started, waiting = _started(ledger, clock), _lease()
    ledger.add([waiting], clock.now)
    clock.now += 9.9
    assert ledger.take_idle() == []
    clock.now += 0.1
    assert ledger.take_idle() == [waiting.fence]
    assert not ledger.start(_id(waiting))
    assert ledger.lease_ids() == {_id(started)}


def test_what_is_known_is_not_added_again(ledger: Ledger, clock: Clock) -> None:
    one, other = _lease(), _lease()
    assert ledger.add([one], clock.now) == [one]
    assert ledger.add([one, other], clock.now) == [other]


def test_a_lease_is_taken_out_once(ledger: Ledger, clock: Clock) -> None:
    lease = _started(ledger, clock)
    assert ledger.remove(_id(lease))
    assert not ledger.remove(_id(lease))
    assert len(ledger) == 0


def test_the_next_loss_is_known_ahead(ledger: Ledger, clock: Clock) -> None:
    assert ledger.next_loss_in(2.5) == 2.5
    _started(ledger, clock)
    clock.now += 29
    assert ledger.next_loss_in(2.5) == 1
    clock.now += 5
    assert ledger.next_loss_in(2.5) == 0


def _started(ledger: Ledger, clock: Clock, asked_at: float | None = None) -> Lease:
    lease = _lease()
    ledger.add([lease], clock.now if asked_at is None else asked_at)
    assert ledger.start(_id(lease))
    return lease


def _id(lease: Lease) -> UUID:
    return lease.fence.lease_id


def _lease() -> Lease:
    return replace(LEASE, fence=Fence(uuid4(), 1, uuid4()))


NOW = datetime(2030, 1, 1, tzinfo=UTC)
LEASE = Lease(
    fence=Fence(uuid4(), 1, uuid4()), namespace="default", lane="default", kind="job", priority=0, payload=b"",
    encoding="json", tags={}, worker=WorkerId("w", "w"), origin="fresh", attempt_index=0, generation=0,
    acquired_at=NOW, expires_at=NOW + timedelta(seconds=TERM_S), ttl=timedelta(seconds=TERM_S), deadline_at=None,
    attempt_timeout_at=None, plain=True,
)  # fmt: skip
