"""Tests for the number of executions that one purge removes."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from flowfabric.core.retention import PurgeBatch, select_due, take_batch
from flowfabric.core.validation import MIN_TIME

NOW = MIN_TIME + timedelta(days=1)


def make_batches(*rows: int) -> list[PurgeBatch]:
    return [PurgeBatch(UUID(int=number), NOW, size) for number, size in enumerate(rows, start=1)]


def test_only_batches_past_their_purge_time_are_due() -> None:
    [due] = make_batches(1)
    later, never = PurgeBatch(due.id, NOW + timedelta(seconds=1), 1), PurgeBatch(due.id, None, 1)
    assert select_due([later, due, never], NOW) == [due]


def test_purge_takes_as_many_executions_as_fit() -> None:
    batches = make_batches(4, 3, 3, 1)
    assert take_batch(batches, 10) == batches[:3]
    assert take_batch(batches, 11) == batches
    assert take_batch([], 10) == []


def test_purge_takes_at_least_one_execution() -> None:
    batches = make_batches(1_000, 1)
    assert take_batch(batches, 10) == batches[:1]
    assert take_batch(batches, 0) == batches[:1]
