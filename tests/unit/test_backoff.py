"""A row that fails is set aside for a growing number of ticks, and is forgotten when it is well."""

from __future__ import annotations

from uuid import UUID

from flowfabric.reconcilers.backoff import Backoffs

BAD, GOOD = UUID(int=1), UUID(int=2)


def _ticks_until_due(backoffs: Backoffs[UUID]) -> int:
    """How many ticks leave the bad row out."""
    for skipped in range(200):
        if BAD in backoffs.without_waiting([BAD, GOOD]):
            return skipped
    raise AssertionError("the row was never tried again")


def test_nothing_is_set_aside_at_first() -> None:
    backoffs: Backoffs[UUID] = Backoffs()
    assert backoffs.without_waiting([BAD, GOOD]) == [BAD, GOOD]
    assert backoffs.waiting == 0


def test_a_failing_row_is_set_aside_for_1_2_4_ticks_and_never_more_than_64() -> None:
    backoffs: Backoffs[UUID] = Backoffs()
    skipped = []
    for _ in range(9):
        backoffs.add(BAD)
        skipped.append(_ticks_until_due(backoffs))
    assert skipped == [1, 2, 4, 8, 16, 32, 64, 64, 64]
    assert backoffs.waiting == 1


def test_the_others_go_on_in_their_order() -> None:
    backoffs: Backoffs[UUID] = Backoffs()
    backoffs.add(BAD)
    others = [UUID(int=number) for number in (9, 3, 7)]
    assert backoffs.without_waiting([others[0], BAD, *others[1:]]) == others


def test_a_row_that_is_well_again_starts_over() -> None:
    backoffs: Backoffs[UUID] = Backoffs()
    for _ in range(4):
        backoffs.add(BAD)
    backoffs.forget(BAD)
    assert backoffs.waiting == 0
    assert backoffs.without_waiting([BAD]) == [BAD]
    backoffs.add(BAD)
    assert _ticks_until_due(backoffs) == 1
    backoffs.forget(GOOD)


def test_the_oldest_are_forgotten_rather_than_growing_without_end() -> None:
    backoffs: Backoffs[UUID] = Backoffs()
    many = [UUID(int=number) for number in range(2000)]
    for id_ in many:
        backoffs.add(id_)
    assert backoffs.waiting == 500
    assert set(backoffs.without_waiting(many)) == set(many[:1500])


def test_a_row_that_fails_again_counts_as_the_newest() -> None:
    backoffs: Backoffs[UUID] = Backoffs()
    backoffs.add(BAD)
    for number in range(10, 10 + 499):
        backoffs.add(UUID(int=number))
    backoffs.add(BAD)
    backoffs.add(GOOD)
    assert backoffs.without_waiting([BAD]) == []
