"""Tests for the lease table of a worker, with a manual clock."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from flowfabric.engine import Fence, Lease, WorkerId
from flowfabric.worker.leases import _MAX_ENDED, LeaseTable

TTL_S = 30.0


class Clock:
    """A callable clock that returns local time in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lease_table(clock: Clock) -> LeaseTable:
    return LeaseTable(clock)


def test_lease_is_due_for_renewal_after_every_third_of_its_ttl(lease_table: LeaseTable, clock: Clock) -> None:
    lease = _add_started_lease(lease_table, clock)
    clock.now += 9.9
    assert lease_table.due_for_renewal() == []
    clock.now += 0.1
    assert lease_table.due_for_renewal() == [lease.fence]
    assert lease_table.extend(_id(lease), clock.now)
    assert lease_table.due_for_renewal() == []
    clock.now += 10
    assert lease_table.due_for_renewal() == [lease.fence]


def test_lease_whose_term_has_passed_is_not_renewed(lease_table: LeaseTable, clock: Clock) -> None:
    lease = _add_started_lease(lease_table, clock)
    clock.now += TTL_S
    assert lease_table.due_for_renewal() == []
    lease_table.lock_began(_id(lease))
    assert lease_table.due_for_renewal() == [lease.fence]


def test_next_renewal_in_returns_the_time_until_a_lease_becomes_due(lease_table: LeaseTable, clock: Clock) -> None:
    assert lease_table.next_renewal_in(5) == 5
    lease = _add_started_lease(lease_table, clock)
    clock.now += 6
    assert lease_table.next_renewal_in(5) == 4
    assert lease_table.due_for_renewal(early_s=3.9) == []
    assert lease_table.due_for_renewal(early_s=4) == [lease.fence]
    clock.now += 4
    assert lease_table.next_renewal_in(5) == 5


def test_most_urgent_lease_is_due_first(lease_table: LeaseTable, clock: Clock) -> None:
    first = _add_started_lease(lease_table, clock)
    clock.now += 5
    second = _add_started_lease(lease_table, clock)
    lease_table.extend(_id(first), clock.now)
    clock.now += 10
    third = _add_started_lease(lease_table, clock, requested_at=clock.now - 20)
    assert lease_table.due_for_renewal()[0] == third.fence
    assert set(lease_table.due_for_renewal()) == {first.fence, second.fence, third.fence}


def test_lease_not_renewed_for_its_ttl_is_lost_once(lease_table: LeaseTable, clock: Clock) -> None:
    lease = _add_started_lease(lease_table, clock)
    clock.now += TTL_S - 0.1
    assert lease_table.take_lost() == []
    clock.now += 0.1
    assert lease_table.take_lost() == [lease.fence]
    assert lease_table.take_lost() == []
    assert not lease_table.extend(_id(lease), clock.now)


def test_ttl_counts_from_the_time_of_the_request(lease_table: LeaseTable, clock: Clock) -> None:
    lease = _add_started_lease(lease_table, clock, requested_at=clock.now - 4)
    clock.now += TTL_S - 4
    assert lease_table.take_lost() == [lease.fence]


def test_lease_not_started_within_a_third_of_its_ttl_is_idle(lease_table: LeaseTable, clock: Clock) -> None:
    started, waiting = _add_started_lease(lease_table, clock), _lease()
    lease_table.add([waiting], clock.now)
    clock.now += 9.9
    assert lease_table.take_idle() == []
    clock.now += 0.1
    assert lease_table.take_idle() == [waiting.fence]
    assert not lease_table.start(_id(waiting))
    assert lease_table.lease_ids() == {_id(started)}


def test_known_lease_is_not_added_again(lease_table: LeaseTable, clock: Clock) -> None:
    one, other = _lease(), _lease()
    assert lease_table.add([one], clock.now) == [one]
    assert lease_table.add([one, other], clock.now) == [other]


def test_lease_under_which_code_was_started_is_never_started_again(lease_table: LeaseTable, clock: Clock) -> None:
    lost, new = _add_started_lease(lease_table, clock), _lease()
    clock.now += TTL_S
    assert lease_table.take_lost() == [lost.fence]
    assert lease_table.split([lost, new]) == ([new], [lost])
    assert lease_table.add([lost, new], clock.now) == [new]
    assert not lease_table.start(_id(lost))


def test_lease_is_started_once(lease_table: LeaseTable, clock: Clock) -> None:
    lease = _add_started_lease(lease_table, clock)
    assert not lease_table.start(_id(lease))


def test_lease_that_was_never_started_may_be_taken_up_after_its_loss(lease_table: LeaseTable, clock: Clock) -> None:
    lease = _lease()
    lease_table.add([lease], clock.now)
    clock.now += TTL_S
    assert lease_table.take_lost() == [lease.fence]
    assert lease_table.split([lease]) == ([lease], [])
    assert lease_table.add([lease], clock.now) == [lease]
    assert lease_table.start(_id(lease))


def test_ended_lease_is_remembered_for_a_while(lease_table: LeaseTable, clock: Clock) -> None:
    """A standby that takes over without the newest transactions lists leases whose end was confirmed."""
    lease = _add_started_lease(lease_table, clock)
    lease_table.confirm_end(_id(lease))
    assert lease_table.split([lease]) == ([], [lease])
    assert lease_table.add([lease], clock.now) == []


def test_memory_of_ended_leases_is_bounded(lease_table: LeaseTable, clock: Clock) -> None:
    for _ in range(_MAX_ENDED + 10):
        lease_table.confirm_end(_id(_add_started_lease(lease_table, clock)))
    assert (len(lease_table._held), len(lease_table._started), len(lease_table._ended)) == (0, _MAX_ENDED, _MAX_ENDED)


def test_lease_is_held_for_its_ttl_after_the_last_acknowledged_renewal(lease_table: LeaseTable, clock: Clock) -> None:
    lease = _add_started_lease(lease_table, clock)
    clock.now += 20
    lease_table.extend(_id(lease), clock.now - 5)
    clock.now += TTL_S - 5.1
    assert lease_table.is_held(_id(lease))
    clock.now += 0.1
    assert not lease_table.is_held(_id(lease))


def test_lease_is_removed_once(lease_table: LeaseTable, clock: Clock) -> None:
    lease = _add_started_lease(lease_table, clock)
    assert lease_table.remove(_id(lease))
    assert not lease_table.remove(_id(lease))
    assert lease_table.lease_ids() == set()


def test_next_loss_in_returns_the_time_until_a_lease_is_lost(lease_table: LeaseTable, clock: Clock) -> None:
    assert lease_table.next_loss_in(2.5) == 2.5
    _add_started_lease(lease_table, clock)
    clock.now += 29
    assert lease_table.next_loss_in(2.5) == 1
    clock.now += 5
    assert lease_table.next_loss_in(2.5) == 0


def test_lease_is_not_lost_while_a_transaction_of_the_worker_locks_its_row(
    lease_table: LeaseTable, clock: Clock
) -> None:
    lease = _add_started_lease(lease_table, clock)
    lease_table.lock_began(_id(lease))
    clock.now += 3 * TTL_S
    assert lease_table.take_lost() == []
    assert lease_table.next_loss_in(2.5) == 2.5
    lease_table.lock_ended(_id(lease), clock.now)
    assert lease_table.take_lost() == []
    clock.now += TTL_S
    assert lease_table.take_lost() == [lease.fence]


def test_lease_is_decided_again_after_a_transaction_that_did_not_commit(lease_table: LeaseTable, clock: Clock) -> None:
    late, renewed = _add_started_lease(lease_table, clock), _add_started_lease(lease_table, clock)
    for lease in (late, renewed):
        lease_table.lock_began(_id(lease))
    clock.now += TTL_S
    lease_table.extend(_id(renewed), clock.now)
    for lease in (late, renewed):
        lease_table.lock_ended(_id(lease), None)
    assert lease_table.take_lost() == [late.fence]


def test_lease_stays_locked_until_the_last_of_its_transactions_has_ended(lease_table: LeaseTable, clock: Clock) -> None:
    lease = _add_started_lease(lease_table, clock)
    lease_table.lock_began(_id(lease))
    lease_table.lock_began(_id(lease))
    clock.now += TTL_S
    lease_table.lock_ended(_id(lease), None)
    assert lease_table.take_lost() == []
    lease_table.lock_ended(_id(lease), None)
    assert lease_table.take_lost() == [lease.fence]


def test_renewal_acknowledged_late_does_not_shorten_a_lease(lease_table: LeaseTable, clock: Clock) -> None:
    lease = _add_started_lease(lease_table, clock)
    lease_table.extend(_id(lease), clock.now + 9)
    lease_table.extend(_id(lease), clock.now + 3)
    clock.now += 3 + TTL_S
    assert lease_table.take_lost() == []


def _add_started_lease(lease_table: LeaseTable, clock: Clock, requested_at: float | None = None) -> Lease:
    lease = _lease()
    lease_table.add([lease], clock.now if requested_at is None else requested_at)
    assert lease_table.start(_id(lease))
    return lease


def _id(lease: Lease) -> UUID:
    return lease.fence.lease_id


def _lease() -> Lease:
    return replace(LEASE, fence=Fence(uuid4(), 1, uuid4()))


NOW = datetime(2030, 1, 1, tzinfo=UTC)
LEASE = Lease(
    fence=Fence(uuid4(), 1, uuid4()), namespace="default", lane="default", kind="job", priority=0, payload=b"",
    encoding="json", tags={}, worker=WorkerId("w", "w"), origin="fresh", attempt_index=0, generation=0,
    acquired_at=NOW, expires_at=NOW + timedelta(seconds=TTL_S), ttl=timedelta(seconds=TTL_S), deadline_at=None,
    attempt_timeout_at=None, is_standalone=True, has_journal=False,
)  # fmt: skip
