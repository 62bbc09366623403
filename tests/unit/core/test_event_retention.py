"""Tests for deciding which events may be deleted, given the positions of named subscribers."""

from __future__ import annotations

from uuid import UUID

from flowfabric.core.events.cursor import Position
from flowfabric.core.retention import DeletedExecution, decide_trim, select_processed

A, B, C = (UUID(int=number) for number in (1, 2, 3))
DUE = [
    DeletedExecution(A, Position(1, 1), (1, 3)),
    DeletedExecution(B, Position(5, 2), (1, 2)),
    DeletedExecution(C, None),
]


def test_all_due_events_are_deleted_without_subscribers() -> None:
    trim = decide_trim(DUE, None, 100)
    assert (trim.part, trim.gone) == ((), (A, B, C))
    assert (trim.postpone, trim.last) == ((), Position(5, 2))


def test_events_the_slowest_subscriber_has_not_passed_are_postponed() -> None:
    trim = decide_trim(DUE, Position(5, 1), 100)
    assert (trim.part, trim.gone) == ((), (A, C))
    assert (trim.postpone, trim.last) == ((B,), Position(1, 1))


def test_at_most_limit_events_are_deleted_at_a_time() -> None:
    assert decide_trim(DUE, None, 4).part == ((B, 1),)
    assert decide_trim(DUE, None, 4).gone == (A, C)
    assert decide_trim(DUE, None, 2).part == ((A, 2),)
    assert decide_trim(DUE, None, 2).gone == (C,)
    remaining = [DeletedExecution(A, Position(1, 1), (3, 3)), DUE[1]]
    assert (decide_trim(remaining, None, 2).gone, decide_trim(remaining, None, 2).part) == ((A,), ((B, 1),))


def test_events_left_for_the_next_page_do_not_move_the_last_position() -> None:
    assert decide_trim(DUE, None, 3).last == Position(1, 1)


def test_no_deleted_events_means_no_last_position() -> None:
    assert decide_trim([], None, 100).last is None
    assert decide_trim([DeletedExecution(C, None)], None, 100).last is None


def test_unattached_events_are_deleted_up_to_the_slowest_subscriber() -> None:
    positions = [Position(1, 1), Position(2, 1)]
    assert select_processed(positions, Position(1, 1)) == positions[:1]
    assert select_processed(positions, None) == positions
