"""Tests for the backoff of failing rows, which skips a row for a growing number of ticks."""

from __future__ import annotations

from uuid import UUID

from flowfabric.reconcilers.duty import Backoffs

BAD, GOOD = UUID(int=1), UUID(int=2)


def _ticks_until_due(backoffs: Backoffs[UUID]) -> int:
    """Return how many ticks skip the bad row before one tries it again."""
    for skipped in range(200):
        if BAD in backoffs.select_ready([BAD, GOOD]):
            return skipped
    raise AssertionError("the row was never tried again")


def test_new_backoff_skips_no_row() -> None:
    backoffs: Backoffs[UUID] = Backoffs()
    assert backoffs.select_ready([BAD, GOOD]) == [BAD, GOOD]
    assert backoffs.waiting == 0


def test_failing_row_is_skipped_for_1_2_4_and_at_most_64_ticks() -> None:
    backoffs: Backoffs[UUID] = Backoffs()
    skipped = []
    for _ in range(9):
        backoffs.add(BAD)
        skipped.append(_ticks_until_due(backoffs))
    assert skipped == [1, 2, 4, 8, 16, 32, 64, 64, 64]
    assert backoffs.waiting == 1


def test_other_rows_keep_their_order() -> None:
    backoffs: Backoffs[UUID] = Backoffs()
    backoffs.add(BAD)
    others = [UUID(int=number) for number in (9, 3, 7)]
    assert backoffs.select_ready([others[0], BAD, *others[1:]]) == others


def test_recovered_row_starts_over() -> None:
    backoffs: Backoffs[UUID] = Backoffs()
    for _ in range(4):
        backoffs.add(BAD)
    backoffs.discard(BAD)
    assert backoffs.waiting == 0
    assert backoffs.select_ready([BAD]) == [BAD]
    backoffs.add(BAD)
    assert _ticks_until_due(backoffs) == 1
    backoffs.discard(GOOD)


def test_oldest_rows_are_dropped_beyond_500() -> None:
    backoffs: Backoffs[UUID] = Backoffs()
    many = [UUID(int=number) for number in range(2000)]
    for id_ in many:
        backoffs.add(id_)
    assert backoffs.waiting == 500
    assert set(backoffs.select_ready(many)) == set(many[:1500])


def test_a_row_that_fails_again_counts_as_the_newest() -> None:
    backoffs: Backoffs[UUID] = Backoffs()
    backoffs.add(BAD)
    for number in range(10, 10 + 499):
        backoffs.add(UUID(int=number))
    backoffs.add(BAD)
    backoffs.add(GOOD)
    assert backoffs.select_ready([BAD]) == []
